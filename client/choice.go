package client

import (
	"context"

	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// Choice is a decision and, when it was booked, the handle of its reservation. Send the request
// to URL with RequestHeaders, and with CacheSalt in its body when that is not empty, and say how it fares: PrefillDone with the first token, Progress now
// and then, Release at the end, whatever the end is. The load is believed to be there until
// then, or until the lease expires without a report.
//
// Reports are idempotent and may be repeated. A Choice is safe for concurrent use. On a choice
// that was not booked (a dry run) they do nothing.
type Choice struct {
	*kvpilotv1.ChooseReplicaResponse
	send reporter
}

// reporter carries lifecycle reports: call by call, or over a stream.
type reporter interface {
	prefillDone(context.Context, *kvpilotv1.ReportPrefillCompletedRequest) error
	progress(context.Context, *kvpilotv1.ReportDecodeProgressRequest) error
	renew(context.Context, *kvpilotv1.RenewReservationRequest) error
	release(context.Context, *kvpilotv1.ReleaseReservationRequest) error
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
	if !ch.Booked() {
		return nil
	}
	return ch.send.prefillDone(ctx, &kvpilotv1.ReportPrefillCompletedRequest{
		ReservationId: ch.GetReservationId(), Attempt: proto.Uint32(ch.GetAttempt()),
	})
}

// Progress reports how many tokens were produced since the start, and renews the lease.
func (ch *Choice) Progress(ctx context.Context, outputTokens uint32) error {
	if !ch.Booked() {
		return nil
	}
	return ch.send.progress(ctx, &kvpilotv1.ReportDecodeProgressRequest{
		ReservationId: ch.GetReservationId(), Attempt: proto.Uint32(ch.GetAttempt()), OutputTokens: outputTokens,
	})
}

// Renew extends the lease of a request that still waits for its first token.
func (ch *Choice) Renew(ctx context.Context) error {
	if !ch.Booked() {
		return nil
	}
	return ch.send.renew(ctx, &kvpilotv1.RenewReservationRequest{
		ReservationId: ch.GetReservationId(), Attempt: proto.Uint32(ch.GetAttempt()),
	})
}

// Result is how a request ended. The zero value: it was answered, and no more is known.
type Result struct {
	// End is how it left its replica; unspecified counts as completed.
	End kvpilotv1.End
	// OutputTokens were produced; zero keeps what Progress reported last.
	OutputTokens uint32
	// CachedTokens of the prompt were found in the cache, by the engine's own word; nil when it
	// did not say. The router compares it with what it predicted.
	CachedTokens *uint32
	// ServedBy is the replica that really served, when it was not the chosen one.
	ServedBy string
}

// Release ends the reservation. Only the first release counts.
func (ch *Choice) Release(ctx context.Context, r Result) error {
	if !ch.Booked() {
		return nil
	}
	req := &kvpilotv1.ReleaseReservationRequest{
		ReservationId: ch.GetReservationId(), Attempt: proto.Uint32(ch.GetAttempt()),
		End: r.End, ServedBy: r.ServedBy, CachedTokens: r.CachedTokens,
	}
	if r.OutputTokens > 0 {
		req.OutputTokens = &r.OutputTokens
	}
	return ch.send.release(ctx, req)
}

// unary reports call by call.
type unary struct {
	rpc kvpilotv1.RoutingServiceClient
}

func (u unary) prefillDone(ctx context.Context, r *kvpilotv1.ReportPrefillCompletedRequest) error {
	_, err := u.rpc.ReportPrefillCompleted(ctx, r)
	return err
}

func (u unary) progress(ctx context.Context, r *kvpilotv1.ReportDecodeProgressRequest) error {
	_, err := u.rpc.ReportDecodeProgress(ctx, r)
	return err
}

func (u unary) renew(ctx context.Context, r *kvpilotv1.RenewReservationRequest) error {
	_, err := u.rpc.RenewReservation(ctx, r)
	return err
}

func (u unary) release(ctx context.Context, r *kvpilotv1.ReleaseReservationRequest) error {
	_, err := u.rpc.ReleaseReservation(ctx, r)
	return err
}
