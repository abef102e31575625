package remote

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/poison"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

const (
	breakerThreshold = 3
	breakerFirst     = time.Second
	breakerLongest   = 30 * time.Second
	// window is for how long an answer shows that tokenizers work.
	window = 10 * time.Second
)

// newBreaker keeps questions from an endpoint after consecutive failures. While open it admits one trial whenever its pause has
// passed; each failed trial doubles the pause.
func newBreaker() *breaker.Breaker {
	return breaker.New(breaker.Config{
		Failures: breakerThreshold, Rate: 1, MinRequests: math.MaxInt32, Window: window, OpenFor: breakerFirst, MaxOpenFor: breakerLongest, Trials: 1,
	})
}

// judge updates the endpoint's breaker from the end of an attempt. A failure that the question may have caused is left to its dialogue;
// d is nil for a probe, which asks the same of every endpoint.
func (p *Pool) judge(caller context.Context, e *endpoint, d *dialogue, err error, pass breaker.Pass, took time.Duration) {
	now := time.Now()
	var f *Fault
	if !errors.As(err, &f) { // an answer, or a refusal of the client's request: the endpoint works
		e.works()
		p.served.Store(now.UnixNano())
		p.report(e, pass, retry.Find(retry.OK, d.from()))
		return
	}
	v := f.verdict()
	switch {
	case f.Kind == KindAuth:
		e.cool(now, coolAuth)
		p.log.Error("replica refuses the router's API key on its tokenizer routes", "replica", string(e.id), "status", f.Status)
	case f.Kind == KindUnsupported:
		e.rest(now)
		p.log.Warn("replica has no tokenizer route", "replica", string(e.id), "status", f.Status)
	case v == retry.Refused:
		e.cool(now, max(f.RetryAfter, coolOverload))
	case f.Kind == KindTimeout && caller.Err() != nil && took < time.Second:
		v = retry.Canceled // the caller was in a hurry
	}
	switch {
	case v.Silent() && d != nil: // others that wait must not wait for this one's retries
		p.report(e, pass, retry.Find(v, d.origin()))
	case v.Follows() && d != nil:
		d.failed(e, pass, v)
	case v.Follows():
		p.report(e, pass, retry.Finding{Verdict: v, Cause: v.Cause(), Sure: true, Origin: retry.Origin{Request: uint64(now.UnixNano())}})
	default:
		p.report(e, pass, retry.Find(v, d.from()))
	}
	switch f.Kind {
	case KindCancelled, KindNoEndpoint, KindOpen, KindBusy, KindUnmappable, KindRefused: // nothing that the replica did
	default:
		e.tally.failure(f.Kind)
	}
}

// verdict is the fault in the terms of package retry.
func (f *Fault) verdict() retry.Verdict {
	switch f.Kind {
	case KindTimeout:
		return retry.Timeout
	case KindMalformed, KindTooLarge:
		return retry.Malformed
	case KindStatus:
		if f.Status < 500 || f.RetryAfter > 0 {
			return retry.Refused
		}
		return retry.EngineError
	case KindConnect:
		if v := upstream.Classify(nil, f.Cause); v.Fault() {
			return v
		}
		return retry.Reset
	case KindAuth, KindUnsupported:
		return retry.Refused
	case KindOwn:
		return retry.OwnFault
	case KindUnmappable:
		return retry.ClientFault
	case KindCancelled, KindNoEndpoint, KindOpen, KindBusy, KindRefused:
	}
	return retry.Canceled
}

// report reports a finding to the endpoint's breaker, and counts it.
func (p *Pool) report(e *endpoint, pass breaker.Pass, f retry.Finding) {
	was := e.breaker.State(e.id)
	e.breaker.Report(e.id, pass, f)
	p.metrics.fault(f)
	if was == breaker.Closed && e.breaker.State(e.id) != breaker.Closed {
		p.metrics.Breakers.Add(context.Background(), 1)
		p.log.Warn("tokenizer endpoint is suspended after repeated failures", slog.String("replica", string(e.id)), slog.String("outcome", f.Verdict.String()))
	}
}

// doubts are a question's failures that may be its own fault.
type doubts struct {
	mu   sync.Mutex
	open poison.Doubts            // guarded by mu
	at   map[replica.ID]*endpoint // guarded by mu
	over bool                     // guarded by mu: the dialogue has ended
}

// failed notes a failure that the question may have caused. Attempts may outlive the dialogue.
func (d *dialogue) failed(e *endpoint, pass breaker.Pass, v retry.Verdict) {
	ds := &d.doubts
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if ds.at == nil {
		ds.at = map[replica.ID]*endpoint{}
	}
	ds.at[e.id] = e
	ds.open.Add(d.pool.poison, d.origin(), poison.Doubt{Replica: e.id, Pass: pass, Verdict: v}, d.found)
	if ds.over {
		ds.open.Conclude(d.pool.poison, d.origin(), d.found)
	}
}

// conclude settles the failures at the end of the dialogue; served is set when an endpoint has answered.
func (d *dialogue) conclude(served bool) {
	ds := &d.doubts
	ds.mu.Lock()
	defer ds.mu.Unlock()
	ds.over = true
	switch {
	case !ds.open.Open():
	case served:
		ds.open.Served(d.pool.poison, d.origin(), true, d.found)
	default:
		ds.open.Conclude(d.pool.poison, d.origin(), d.found)
	}
}

// found reports a finding about a failure; the lock of doubts is held. While no tokenizer answers anything, questions that fail
// everywhere are no evidence against the questions.
func (d *dialogue) found(one poison.Doubt, f retry.Finding) {
	if !f.Cause.Against() && time.Since(time.Unix(0, d.pool.served.Load())) > window {
		f.Cause = f.Verdict.Cause()
	}
	d.pool.report(d.doubts.at[one.Replica], one.Pass, f)
}

// worthRetry reports whether another endpoint may do better at a question that an endpoint failed.
func (d *dialogue) worthRetry(f *Fault) bool {
	v := f.verdict()
	if !v.Follows() {
		return true
	}
	d.doubts.mu.Lock()
	alike := d.doubts.open.Alike()
	d.doubts.mu.Unlock()
	switch {
	case alike, d.pool.poison.Times(d.origin()) > 0:
		return false
	case v == retry.EngineError:
		return !d.pool.poison.Suspect(d.origin())
	}
	return true
}

// origin names the question.
func (d *dialogue) origin() retry.Origin {
	d.once.Do(func() { d.name = d.job.origin(d.pool.poison) })
	return d.name
}

// from names the tenant of the question; a probe has none.
func (d *dialogue) from() retry.Origin {
	if d == nil {
		return retry.Origin{}
	}
	return retry.Origin{Tenant: d.pool.poison.Tenant(d.job.Tenant)}
}
