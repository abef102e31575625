package router

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"syscall"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// stopPatience bounds the question whether a replica has stopped.
const stopPatience = 500 * time.Millisecond

// resultPoison is the result of a stream that two replicas stopped at, at the same token.
const resultPoison = "poison"

// stopper finds streamed requests that stop the replicas which get them, so that no third one does.
type stopper struct {
	upstream *upstream.Client
	results  *instruments.Keyed[string]
	log      *slog.Logger
}

// stops notes the end of the attempt under way with f, and reports whether the request has stopped two replicas at the same token, or both
// before the first one.
func (s *stopper) stops(ctx context.Context, rq *intake.Request, t *tries, d *delivery, f *failure) bool {
	a := d.attempt
	if !rq.Parsed.Stream && !d.begun || !rq.Call.Route.Generates() || a == nil || !a.died(f) {
		return false
	}
	own := a.choice.Replica
	other := t.deaths.add(death{own, d.scan.ContentEvents()})
	switch {
	case other == nil:
		return false
	case !t.deaths.named && (!s.stopped(ctx, other) || !s.stopped(ctx, own)):
		return false
	}
	if !t.deaths.named {
		t.deaths.named = true
		s.results.Add(resultPoison)
		s.log.Warn("a stream stopped two replicas at the same token: it is not tried on a third one", "request", rq.Call.RequestID, "decision", rq.ID,
			"replica", string(own.ID), "before", string(other.ID), "tokens", rq.TokensIn(d.scan.ContentEvents()), "error", f.public)
	}
	return true
}

// stopped reports whether nothing listens at a replica, or its engine is dead behind its server. One that does not answer, or is ready again, has
// not stopped as far as is known: a network that breaks connections is no fault of a request.
func (s *stopper) stopped(ctx context.Context, rep *replica.Replica) bool {
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	resp, err := s.upstream.Do(ctx, upstream.Target{Replica: rep}, &upstream.Request{Method: http.MethodGet, Path: "/health"})
	if err != nil {
		return errors.Is(err, syscall.ECONNREFUSED)
	}
	resp.Close()
	return resp.Status >= http.StatusInternalServerError
}
