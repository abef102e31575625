package grpcapi

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/observe/decisionlog"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/peers/forward"
)

// Lifecycle takes the reports about a reservation; *chooser.Chooser does.
type Lifecycle interface {
	PrefillCompleted(key load.Key) load.Outcome
	ReportProgress(key load.Key, outputTokens int) load.Outcome
	Renew(key load.Key) load.Outcome
	Finish(key load.Key, result chooser.Result) load.Outcome
}

// reservations takes the reports about bookings.
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

func (s *reservations) ReportReservation(ctx context.Context, in *kvpilotv1.ReservationReport) (*kvpilotv1.Reservation, error) {
	if in.GetBind() != nil {
		return nil, invalid("bind", "a reservation is bound to a stream: send it to TrackReservation")
	}
	return s.report(ctx, in)
}

// report has a report applied by the router that made the reservation.
func (s *reservations) report(ctx context.Context, in *kvpilotv1.ReservationReport) (*kvpilotv1.Reservation, error) {
	nameReport(trace.SpanFromContext(ctx), in)
	if out, passed, err := toOwner(ctx, s.others, in.GetReservationId(), in, kvpilotv1.RoutingServiceClient.ReportReservation); passed {
		return s.passed(ctx, out, err)
	}
	key := s.key(ctx, in.GetReservationId(), in.Attempt)
	var outcome load.Outcome
	switch e := in.GetEvent().(type) {
	case *kvpilotv1.ReservationReport_FirstToken:
		outcome = s.lifecycle.PrefillCompleted(key)
	case *kvpilotv1.ReservationReport_Progress:
		outcome = s.lifecycle.ReportProgress(key, int(e.Progress.GetOutputTokens()))
	case *kvpilotv1.ReservationReport_Renew:
		outcome = s.lifecycle.Renew(key)
	case *kvpilotv1.ReservationReport_Release:
		outcome = s.release(ctx, key, e.Release)
	default:
		return nil, invalid("event", "is missing")
	}
	return s.reported(ctx, key, outcome)
}

// nameReport adds to a span the report that the call makes.
func nameReport(sp trace.Span, in *kvpilotv1.ReservationReport) {
	if !sp.IsRecording() {
		return
	}
	m := in.ProtoReflect()
	if event := m.WhichOneof(m.Descriptor().Oneofs().ByName("event")); event != nil {
		sp.SetAttributes(span.Report.String(string(event.Name())))
	}
}

func (s *reservations) release(ctx context.Context, key load.Key, in *kvpilotv1.ReleaseReport) load.Outcome {
	result := chooser.Result{End: releaseEnd(in.GetReason()), PromptTokens: -1, OutputTokens: -1, CachedTokens: -1, ServedBy: replica.ID(in.GetServedBy())}
	if in.OutputTokens != nil {
		result.OutputTokens = int(in.GetOutputTokens())
	}
	if in.CachedTokens != nil {
		result.CachedTokens = int(in.GetCachedTokens())
	}
	s.noteServer(ctx, key, in.GetServedBy())
	outcome := s.lifecycle.Finish(key, result)
	if outcome == load.Ended {
		return load.Duplicate // the caller's wish is already fulfilled
	}
	return outcome
}

// releaseEnd is the end that a caller reports. The contract's rules reject every other value.
func releaseEnd(reason kvpilotv1.ReleaseReason) decision.End {
	switch reason {
	case kvpilotv1.ReleaseReason_RELEASE_REASON_COMPLETED:
		return decision.EndCompleted
	case kvpilotv1.ReleaseReason_RELEASE_REASON_CANCELED:
		return decision.EndCanceled
	case kvpilotv1.ReleaseReason_RELEASE_REASON_REJECTED:
		return decision.EndRejected
	case kvpilotv1.ReleaseReason_RELEASE_REASON_FAILED, kvpilotv1.ReleaseReason_RELEASE_REASON_UNSPECIFIED:
	}
	return decision.EndFailed
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
		s.metrics.Elsewhere.Add(ctx, 1)
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

// link ties a span to the span in which a reservation was decided.
func (s *reservations) link(sp trace.Span, key load.Key) {
	if e, ok := s.decisions.Get(key.ID, int(key.Attempt)); ok && e.Decision.Tenant == key.Tenant {
		span.Link(sp, e.Decision.TraceID, e.Decision.SpanID)
	}
}

// maxLinks is how many reservations a stream's span is tied to; the SDK would keep the last ones of
// more.
const maxLinks = 128

// linkOnce ties a stream's span to a reservation that it has not been tied to yet.
func (s *reservations) linkOnce(ctx context.Context, linked map[string]bool, r *kvpilotv1.Reservation) {
	sp := trace.SpanFromContext(ctx)
	if id := r.GetReservationId(); id != "" && sp.IsRecording() && !linked[id] && len(linked) < maxLinks {
		linked[id] = true
		s.link(sp, load.Key{Tenant: s.senders.tenant(ctx), ID: id, Attempt: r.GetAttempt()})
	}
}

// maxBound is how many reservations one stream may be bound to.
const maxBound = 65536

// TrackReservation answers each report on the stream, and ends the reservations bound to it when its caller ends it. When the router
// leaves, the bookings keep their leases: their requests continue, and in a fleet the caller reports to another router.
func (s *reservations) TrackReservation(ss grpc.BidiStreamingServer[kvpilotv1.ReservationReport, kvpilotv1.TrackReservationResponse]) error {
	bound, linked := map[string]uint32{}, map[string]bool{}
	quiet := trace.ContextWithSpan(ss.Context(), noop.Span{}) // thousands of reports would fill the stream's span
	defer func() {
		if s.life.ended.Err() == nil {
			s.releaseAll(ss.Context(), bound)
		}
	}()
	defer s.life.endOnLeave(ss.Context())()
	if err := ss.SendHeader(httpcall.StreamOpen()); err != nil {
		return err
	}
	var unreadable *httpcall.Mistakes // of a REST caller's lines
	if e := httpcall.From(ss.Context()); e != nil {
		unreadable = e.Mistakes
	}
	for n := 1; ; n++ {
		in, err := ss.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		out := &kvpilotv1.TrackReservationResponse{Sequence: in.GetSequence()}
		if err = unreadable.Take(n); err == nil {
			out.Reservation, err = s.reportOnStream(quiet, in, bound)
		}
		s.linkOnce(ss.Context(), linked, out.Reservation)
		if err != nil {
			public := apierror.From(err)
			out.Reason, out.Message = public.Reason, public.Message
		}
		if err := ss.Send(out); err != nil {
			return err
		}
	}
}

// reportOnStream applies one report of a stream. One that breaks a rule is answered like any other.
func (s *reservations) reportOnStream(ctx context.Context, in *kvpilotv1.ReservationReport, bound map[string]uint32) (*kvpilotv1.Reservation, error) {
	if err := s.rules.check(in); err != nil {
		return nil, err
	}
	if in.GetBind() != nil {
		return s.bind(ctx, in, bound)
	}
	out, err := s.report(ctx, in)
	if err == nil && in.GetRelease() != nil && bound[out.GetReservationId()] == out.GetAttempt() {
		delete(bound, out.GetReservationId())
	}
	return out, err
}

// bind ties a reservation to the stream. The lease still runs: a stream that is open but silent for
// longer is treated as dead.
func (s *reservations) bind(ctx context.Context, in *kvpilotv1.ReservationReport, bound map[string]uint32) (*kvpilotv1.Reservation, error) {
	id := in.GetReservationId()
	if _, again := bound[id]; !again && len(bound) >= maxBound {
		return nil, apierror.New(apierror.Overloaded, "too many reservations are bound to this stream", nil)
	}
	out, err := s.report(ctx, &kvpilotv1.ReservationReport{
		ReservationId: id, Attempt: in.Attempt, Event: &kvpilotv1.ReservationReport_Renew{Renew: &kvpilotv1.RenewalReport{}},
	})
	if err == nil {
		bound[id] = out.GetAttempt()
	}
	return out, err
}

// releaseAll ends the reservations still bound to a stream that has ended. Leases end reservations of other routers that do not take the
// release in time.
func (s *reservations) releaseAll(ctx context.Context, bound map[string]uint32) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releasePatience)
	defer cancel()
	var passing errgroup.Group
	passing.SetLimit(releasesAtOnce)
	for id, attempt := range bound {
		if s.others.of(ctx) != nil && forward.OwnerID(id) != s.others.peers.Self().ID {
			passing.Go(func() error {
				out, err := s.report(ctx, &kvpilotv1.ReservationReport{
					ReservationId: id, Attempt: &attempt,
					Event: &kvpilotv1.ReservationReport_Release{Release: &kvpilotv1.ReleaseReport{Reason: kvpilotv1.ReleaseReason_RELEASE_REASON_CANCELED}},
				})
				if err == nil && out.GetEffect() == kvpilotv1.Effect_EFFECT_APPLIED {
					s.metrics.Released.Add(ctx, 1)
				}
				return nil
			})
			continue
		}
		result := chooser.ResultOf(decision.EndCanceled)
		if s.lifecycle.Finish(load.Key{Tenant: s.senders.tenant(ctx), ID: id, Attempt: attempt}, result) == load.Applied {
			s.metrics.Released.Add(ctx, 1)
		}
	}
	_ = passing.Wait() // no function returns an error
}

// releasePatience bounds the time of releaseAll, releasesAtOnce the calls that it has open.
const (
	releasePatience = 5 * time.Second
	releasesAtOnce  = 16
)
