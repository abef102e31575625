package grpcapi

import (
	"context"
	"errors"
	"io"
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
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/peers/forward"
)

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

// TrackReservation answers each report on the stream, and ends what was bound to it when its caller ends it. When the router
// leaves, the bookings keep their leases: their requests continue, and in a fleet the caller reports to another router.
func (s *reservations) TrackReservation(ss grpc.BidiStreamingServer[kvpilotv1.TrackReservationRequest, kvpilotv1.TrackReservationResponse]) error {
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
			out.Reservation, err = s.report(quiet, in, bound)
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

// report applies one report of a stream. One that breaks a rule is answered like any other.
func (s *reservations) report(ctx context.Context, in *kvpilotv1.TrackReservationRequest, bound map[string]uint32) (*kvpilotv1.Reservation, error) {
	if err := s.rules.check(in); err != nil {
		return nil, err
	}
	switch r := in.GetReport().(type) {
	case *kvpilotv1.TrackReservationRequest_PrefillCompleted:
		return s.ReportPrefillCompleted(ctx, r.PrefillCompleted)
	case *kvpilotv1.TrackReservationRequest_DecodeProgress:
		return s.ReportDecodeProgress(ctx, r.DecodeProgress)
	case *kvpilotv1.TrackReservationRequest_Renew:
		return s.RenewReservation(ctx, r.Renew)
	case *kvpilotv1.TrackReservationRequest_Release:
		out, err := s.ReleaseReservation(ctx, r.Release)
		if err == nil && bound[out.GetReservationId()] == out.GetAttempt() {
			delete(bound, out.GetReservationId())
		}
		return out, err
	case *kvpilotv1.TrackReservationRequest_Bind:
		return s.bind(ctx, r.Bind, bound)
	}
	return nil, invalid("report", "is missing")
}

// bind ties a reservation to the stream. The lease still runs: a stream that is open but silent for
// longer is treated as dead.
func (s *reservations) bind(ctx context.Context, in *kvpilotv1.BindReservation, bound map[string]uint32) (*kvpilotv1.Reservation, error) {
	id := in.GetReservationId()
	if _, again := bound[id]; !again && len(bound) >= maxBound {
		return nil, apierror.New(apierror.Overloaded, "too many reservations are bound to this stream", nil)
	}
	out, err := s.RenewReservation(ctx, &kvpilotv1.RenewReservationRequest{ReservationId: id, Attempt: in.Attempt})
	if err == nil {
		bound[id] = out.GetAttempt()
	}
	return out, err
}

// releaseAll ends what was still bound to a stream that has ended. Leases end what other routers own and does not take in time.
func (s *reservations) releaseAll(ctx context.Context, bound map[string]uint32) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releasePatience)
	defer cancel()
	var passing errgroup.Group
	passing.SetLimit(releasesAtOnce)
	for id, attempt := range bound {
		if s.others.of(ctx) != nil && forward.OwnerID(id) != s.others.peers.Self().ID {
			passing.Go(func() error {
				out, err := s.ReleaseReservation(ctx, &kvpilotv1.ReleaseReservationRequest{ReservationId: id, Attempt: &attempt, End: kvpilotv1.End_END_CANCELED})
				if err == nil && out.GetEffect() == kvpilotv1.Effect_EFFECT_APPLIED {
					s.metrics.released.Add(ctx, 1)
				}
				return nil
			})
			continue
		}
		result := chooser.Result{End: decision.EndCanceled, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1}
		if s.lifecycle.Finish(load.Key{Tenant: s.senders.tenant(ctx), ID: id, Attempt: attempt}, result) == load.Applied {
			s.metrics.released.Add(ctx, 1)
		}
	}
	_ = passing.Wait() // no function returns an error
}

// releasePatience bounds the time of releaseAll, releasesAtOnce the calls that it has open.
const (
	releasePatience = 5 * time.Second
	releasesAtOnce  = 16
)
