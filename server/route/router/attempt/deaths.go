package attempt

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"syscall"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// stopPatience bounds the question whether a replica has stopped.
const stopPatience = 500 * time.Millisecond

// ResultPoison is the result of a stream that two replicas stopped at, at the same token.
const ResultPoison = "poison"

// stopper finds streamed requests that stop the replicas which get them, so that no third one does.
type stopper struct {
	upstream *upstream.Client
	results  *instruments.Keyed[string]
	log      *slog.Logger
}

// Stops notes the end of the attempt under way with f, and reports whether the request has stopped two replicas at the same token, or both
// before the first one.
func (s *stopper) Stops(ctx context.Context, rq *intake.Request, t *Tries, d *Delivery, f *Failure) bool {
	a := d.Attempt
	if !rq.Parsed.Stream && !d.begun || !rq.Call.Route.Generates() || a == nil || !a.died(f) {
		return false
	}
	own := a.Choice.Replica
	other := t.deaths.add(death{own, d.Scan.ContentEvents()})
	switch {
	case other == nil:
		return false
	case !t.deaths.Named && (!s.stopped(ctx, other) || !s.stopped(ctx, own)):
		return false
	}
	if !t.deaths.Named {
		t.deaths.Named = true
		s.results.Add(ResultPoison)
		s.log.Warn("a stream stopped two replicas at the same token: it is not tried on a third one", "request", rq.Call.RequestID, "decision", rq.ID,
			"replica", string(own.ID), "before", string(other.ID), "tokens", rq.TokensIn(d.Scan.ContentEvents()), "error", f.Public)
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

// death is a replica that stopped while it answered, with so many content events of the answer at the client.
type death struct {
	replica *replica.Replica
	at      int
}

// deaths are those of one request. A request that stops two replicas at the same token is taken to be the reason.
type deaths struct {
	all []death
	// Named is set once the request was named.
	Named bool
}

// add notes a death, and returns the other replica that stopped at the same token; nil when there is none.
func (d *deaths) add(one death) (other *replica.Replica) {
	known := false
	for _, o := range d.all {
		switch same := o.replica.ID == one.replica.ID; {
		case o.at == one.at && same:
			known = true
		case o.at == one.at:
			other = o.replica
		}
	}
	if !known {
		d.all = append(d.all, one)
	}
	return other
}

// died reports whether f looks like the end of the replica's process, which had the request.
func (a *Attempt) died(f *Failure) bool {
	if f.Outcome != retry.Reset && f.Outcome != retry.Broken || a.stopped.Load() {
		return false
	}
	for _, other := range []error{resume.ErrAborted, resume.ErrStrange, resume.ErrDiverged, ErrContinuation, ErrStalled} {
		if errors.Is(f.Public, other) {
			return false
		}
	}
	return true
}
