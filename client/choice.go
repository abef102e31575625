package client

import (
	"context"

	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// Choice is a decision and, when it was booked, the handle of its reservation. Send the request
// to URL with RequestHeaders, and with CacheSalt in its body when that is not empty, and report its progress: PrefillDone with the
// first token, Progress now and then, Release at the end, with its reason. The router counts the load until then, or until the lease
// expires without a report.
//
// Reports are idempotent and may be repeated. A Choice is safe for concurrent use. On a choice
// that was not booked (a dry run) they do nothing.
type Choice struct {
	*kvpilotv1.ChooseReplicaResponse
	send reporter
}

// reporter carries reports: call by call, or over a stream.
type reporter interface {
	report(context.Context, *kvpilotv1.ReservationReport) error
}

// Choose asks for a replica and books the load there, unless req says otherwise.
func (c *Client) Choose(ctx context.Context, req *kvpilotv1.ChooseReplicaRequest) (*Choice, error) {
	resp, err := c.routing.ChooseReplica(ctx, req)
	if err != nil {
		return nil, err
	}
	return &Choice{ChooseReplicaResponse: resp, send: unary{c.routing}}, nil
}

// ChooseForBody chooses for an inference request as the client wrote it.
func (c *Client) ChooseForBody(ctx context.Context, body []byte) (*Choice, error) {
	return c.Choose(ctx, &kvpilotv1.ChooseReplicaRequest{
		Prompt: &kvpilotv1.ChooseReplicaRequest_Body{Body: &kvpilotv1.RequestBody{Json: body}},
	})
}

// Booked reports whether there is a reservation to report on.
func (ch *Choice) Booked() bool { return ch.GetReservationId() != "" }

// PrefillDone reports that the first token was produced.
func (ch *Choice) PrefillDone(ctx context.Context) error {
	return ch.report(ctx, &kvpilotv1.ReservationReport{Event: &kvpilotv1.ReservationReport_FirstToken{FirstToken: &kvpilotv1.FirstTokenReport{}}})
}

// Progress reports how many tokens were produced since the start, and renews the lease.
func (ch *Choice) Progress(ctx context.Context, outputTokens uint32) error {
	return ch.report(ctx, &kvpilotv1.ReservationReport{
		Event: &kvpilotv1.ReservationReport_Progress{Progress: &kvpilotv1.ProgressReport{OutputTokens: outputTokens}},
	})
}

// Renew extends the lease of a request that still waits for its first token.
func (ch *Choice) Renew(ctx context.Context) error {
	return ch.report(ctx, &kvpilotv1.ReservationReport{Event: &kvpilotv1.ReservationReport_Renew{Renew: &kvpilotv1.RenewalReport{}}})
}

// Result is the part of a request's end that only its caller has seen. The zero value: nothing more is known than the reason.
type Result struct {
	// OutputTokens were produced; zero keeps the last report of Progress.
	OutputTokens uint32
	// CachedTokens of the prompt were found in the cache, by the engine's own word; nil when it
	// did not say. The router compares it with its prediction.
	CachedTokens *uint32
	// ServedBy is the replica that really served, when it was not the chosen one.
	ServedBy string
}

// Release ends the reservation. Only the first release counts.
func (ch *Choice) Release(ctx context.Context, reason kvpilotv1.ReleaseReason, r Result) error {
	release := &kvpilotv1.ReleaseReport{Reason: reason, ServedBy: r.ServedBy, CachedTokens: r.CachedTokens}
	if r.OutputTokens > 0 {
		release.OutputTokens = &r.OutputTokens
	}
	return ch.report(ctx, &kvpilotv1.ReservationReport{Event: &kvpilotv1.ReservationReport_Release{Release: release}})
}

// report sends the choice's report about its reservation.
func (ch *Choice) report(ctx context.Context, r *kvpilotv1.ReservationReport) error {
	if !ch.Booked() {
		return nil
	}
	r.ReservationId, r.Attempt = ch.GetReservationId(), proto.Uint32(ch.GetAttempt())
	return ch.send.report(ctx, r)
}

// unary reports call by call.
type unary struct {
	rpc kvpilotv1.RoutingServiceClient
}

func (u unary) report(ctx context.Context, r *kvpilotv1.ReservationReport) error {
	_, err := u.rpc.ReportReservation(ctx, r)
	return err
}
