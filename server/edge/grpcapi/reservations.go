package grpcapi

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/trace"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/observe/decisionlog"
	"github.com/kvpilot/kvpilot/server/observe/span"
)

// Lifecycle takes the reports about a reservation; *chooser.Chooser does.
type Lifecycle interface {
	PrefillCompleted(key load.Key) load.Outcome
	ReportProgress(key load.Key, outputTokens int) load.Outcome
	Renew(key load.Key) load.Outcome
	Finish(key load.Key, result chooser.Result) load.Outcome
}

// reservations takes the reports about what was booked.
type reservations struct {
	lifecycle Lifecycle
	book      *load.Book
	decisions *decisionlog.Log
	senders   *senders
	others    *others
	rules     rules
	life      *life
	metrics   *metrics
}

func (s *reservations) ReportPrefillCompleted(ctx context.Context, in *kvpilotv1.ReportPrefillCompletedRequest) (*kvpilotv1.Reservation, error) {
	if out, passed, err := toOwner(ctx, s.others, in.GetReservationId(), in, kvpilotv1.RoutingServiceClient.ReportPrefillCompleted); passed {
		return s.passed(ctx, out, err)
	}
	key := s.key(ctx, in.GetReservationId(), in.Attempt)
	return s.reported(ctx, key, s.lifecycle.PrefillCompleted(key))
}

func (s *reservations) ReportDecodeProgress(ctx context.Context, in *kvpilotv1.ReportDecodeProgressRequest) (*kvpilotv1.Reservation, error) {
	if out, passed, err := toOwner(ctx, s.others, in.GetReservationId(), in, kvpilotv1.RoutingServiceClient.ReportDecodeProgress); passed {
		return s.passed(ctx, out, err)
	}
	key := s.key(ctx, in.GetReservationId(), in.Attempt)
	return s.reported(ctx, key, s.lifecycle.ReportProgress(key, int(in.GetOutputTokens())))
}

func (s *reservations) RenewReservation(ctx context.Context, in *kvpilotv1.RenewReservationRequest) (*kvpilotv1.Reservation, error) {
	if out, passed, err := toOwner(ctx, s.others, in.GetReservationId(), in, kvpilotv1.RoutingServiceClient.RenewReservation); passed {
		return s.passed(ctx, out, err)
	}
	key := s.key(ctx, in.GetReservationId(), in.Attempt)
	return s.reported(ctx, key, s.lifecycle.Renew(key))
}

func (s *reservations) ReleaseReservation(ctx context.Context, in *kvpilotv1.ReleaseReservationRequest) (*kvpilotv1.Reservation, error) {
	if out, passed, err := toOwner(ctx, s.others, in.GetReservationId(), in, kvpilotv1.RoutingServiceClient.ReleaseReservation); passed {
		return s.passed(ctx, out, err)
	}
	key := s.key(ctx, in.GetReservationId(), in.Attempt)
	result := chooser.Result{End: endFrom(in.GetEnd()), PromptTokens: -1, OutputTokens: -1, CachedTokens: -1, ServedBy: replica.ID(in.GetServedBy())}
	if in.OutputTokens != nil {
		result.OutputTokens = int(in.GetOutputTokens())
	}
	if in.CachedTokens != nil {
		result.CachedTokens = int(in.GetCachedTokens())
	}
	s.noteServer(ctx, key, in.GetServedBy())
	outcome := s.lifecycle.Finish(key, result)
	if outcome == load.Ended {
		outcome = load.Duplicate // what the caller wanted is already done
	}
	return s.reported(ctx, key, outcome)
}

// passed is the answer to a report that its owner has taken.
func (s *reservations) passed(ctx context.Context, out *kvpilotv1.Reservation, err error) (*kvpilotv1.Reservation, error) {
	if err != nil {
		return nil, err
	}
	if sp := trace.SpanFromContext(ctx); sp.IsRecording() {
		effect := strings.ToLower(strings.TrimPrefix(out.GetEffect().String(), "EFFECT_"))
		sp.SetAttributes(span.DecisionID.String(out.GetReservationId()), span.Attempt.Int(int(out.GetAttempt())), span.Effect.String(effect))
	}
	return out, nil
}

// noteServer counts requests that did not go to the chosen replica.
func (s *reservations) noteServer(ctx context.Context, key load.Key, servedBy string) {
	if servedBy == "" {
		return
	}
	e, ok := s.decisions.Get(key.ID, int(key.Attempt))
	if !ok || e.Decision.Tenant != key.Tenant {
		return
	}
	if pick := e.Decision.Pick(); pick != nil && string(pick.Replica) != servedBy {
		s.metrics.elsewhere.Add(ctx, 1)
	}
}

// key names a reservation of the caller's tenant, by the attempt that the call names or the latest. It never finds another
// tenant's reservation, for any role of the caller.
func (s *reservations) key(ctx context.Context, id string, attempt *uint32) load.Key {
	key := load.Key{Tenant: s.senders.tenant(ctx), ID: id}
	if attempt != nil {
		key.Attempt = *attempt
	} else if r, ok := s.book.Find(key.Tenant, id); ok {
		key.Attempt = r.Attempt()
	}
	return key
}

// reported is the answer to a report.
func (s *reservations) reported(ctx context.Context, key load.Key, outcome load.Outcome) (*kvpilotv1.Reservation, error) {
	if sp := trace.SpanFromContext(ctx); sp.IsRecording() {
		sp.SetAttributes(span.DecisionID.String(key.ID), span.Attempt.Int(int(key.Attempt)), span.Effect.String(outcome.String()))
		s.link(sp, key)
	}
	out := &kvpilotv1.Reservation{ReservationId: key.ID, Attempt: key.Attempt}
	switch outcome {
	case load.Applied:
		out.Effect = kvpilotv1.Effect_EFFECT_APPLIED
	case load.Duplicate:
		out.Effect = kvpilotv1.Effect_EFFECT_DUPLICATE
	case load.Stale:
		out.Effect = kvpilotv1.Effect_EFFECT_STALE
	case load.Ended:
		return nil, apierror.New(apierror.ReservationEnded, "the reservation has ended", nil, apierror.WithParam("reservation_id"))
	case load.Lost:
		return nil, apierror.New(apierror.ReservationEnded, "the replica that the reservation was booked on is gone", nil, apierror.WithParam("reservation_id"))
	case load.Unknown:
		return nil, reservationNotFound()
	}
	return out, nil
}

// link ties a span to the one in which a reservation was decided.
func (s *reservations) link(sp trace.Span, key load.Key) {
	if e, ok := s.decisions.Get(key.ID, int(key.Attempt)); ok && e.Decision.Tenant == key.Tenant {
		span.Link(sp, e.Decision.TraceID, e.Decision.SpanID)
	}
}

func endFrom(e kvpilotv1.End) decision.End {
	switch e {
	case kvpilotv1.End_END_CANCELED:
		return decision.EndCanceled
	case kvpilotv1.End_END_REJECTED:
		return decision.EndRejected
	case kvpilotv1.End_END_FAILED:
		return decision.EndFailed
	case kvpilotv1.End_END_MOVED:
		return decision.EndMoved
	case kvpilotv1.End_END_EXPIRED:
		return decision.EndExpired
	case kvpilotv1.End_END_REMOVED:
		return decision.EndRemoved
	case kvpilotv1.End_END_RESUMED:
		return decision.EndResumed
	case kvpilotv1.End_END_UNSERVED:
		return decision.EndUnserved
	case kvpilotv1.End_END_HANDED_OVER:
		return decision.EndHandedOver
	case kvpilotv1.End_END_UNSPECIFIED, kvpilotv1.End_END_COMPLETED:
	}
	return decision.EndCompleted
}
