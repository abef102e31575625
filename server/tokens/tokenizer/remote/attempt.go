package remote

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// attempt asks one endpoint once, in the better of the two forms that it understands.
func (p *Pool) attempt(ctx context.Context, e *endpoint, j *Job, parent string) (*Answer, error) {
	select {
	case e.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, p.ended(ctx)
	}
	defer func() { <-e.slots }()
	start := time.Now()
	e.lastUsed.Store(start.UnixNano())
	ok, trial := e.breaker.begin(start)
	if !ok {
		return nil, &Fault{Kind: KindOpen}
	}
	if parent != "" {
		based := *j
		based.Model = parent
		j = &based
	}
	limit := p.latency.attemptLimit(j.size(), p.cap())
	asked, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer, route, err := p.askBest(asked, e, j)
	took := time.Since(start)
	p.judge(ctx, e, err, trial, took)
	p.metrics.observeCall(ctx, callLabels{string(e.id), j.Model, route, outcomeOf(err)}, took)
	if err == nil {
		p.latency.add(j.size(), took)
	}
	return answer, err
}

// askBest prefers the render routes and remembers when there are none.
func (p *Pool) askBest(ctx context.Context, e *endpoint, j *Job) (*Answer, string, error) {
	if j.Op == OpPrompt {
		a, done, err := p.native(ctx, e, j)
		switch {
		case done:
			return a, "render", err
		case j.Prompt == nil:
			return nil, "render", &Fault{Kind: KindUnmappable}
		}
	}
	if j.Op == OpDetokenize {
		a, err := p.client.ask(ctx, e, j, false)
		return a, "detokenize", err
	}
	if j.Op != OpPrompt || support(e.render.Load()) == supportNo || j.beams() {
		a, err := p.client.ask(ctx, e, j, false)
		return a, "tokenize", err
	}
	a, err := p.client.ask(ctx, e, j, true)
	var f *Fault
	switch {
	case err == nil:
		e.render.Store(int32(supportYes))
		return a, "render", nil
	case errors.As(err, &f) && (f.Kind == KindUnsupported || (f.Kind == KindMalformed && support(e.render.Load()) == supportUnknown)):
		a, err = p.client.ask(ctx, e, j, false)
		if errors.As(err, &f) && f.Kind == KindUnsupported {
			return a, "tokenize", err // something before the replica has no route at all
		}
		if e.render.CompareAndSwap(int32(supportUnknown), int32(supportNo)) {
			p.log.Info("replica has no render route, its tokenize route is used", "replica", string(e.id))
		}
		e.render.Store(int32(supportNo))
		return a, "tokenize", err
	}
	return a, "render", err
}

// judge updates the endpoint's breaker from the end of an attempt.
func (p *Pool) judge(caller context.Context, e *endpoint, err error, trial bool, took time.Duration) {
	now := time.Now()
	var f *Fault
	if !errors.As(err, &f) {
		e.works() // an answer, or a refusal of the client's request
		return
	}
	cool := func(d time.Duration) {
		e.cool(now, d)
		e.breaker.neutral(now, trial)
	}
	switch f.Kind {
	case KindAuth:
		cool(coolAuth)
		p.log.Error("replica refuses the router's API key on its tokenizer routes", "replica", string(e.id), "status", f.Status)
	case KindUnsupported:
		e.rest(now)
		e.breaker.neutral(now, trial)
		p.log.Warn("replica has no tokenizer route", "replica", string(e.id), "status", f.Status)
	case KindStatus:
		if f.Status < 500 || f.RetryAfter > 0 {
			cool(max(f.RetryAfter, coolOverload))
			break
		}
		p.failed(e, now, trial, f)
	case KindTimeout:
		if caller.Err() != nil && took < time.Second {
			e.breaker.neutral(now, trial) // the caller was in a hurry
			break
		}
		p.failed(e, now, trial, f)
	case KindConnect, KindMalformed, KindTooLarge:
		p.failed(e, now, trial, f)
	case KindCancelled, KindNoEndpoint, KindOpen, KindBusy, KindUnmappable, KindRefused:
		e.breaker.neutral(now, trial)
		return // nothing that the replica did
	}
	p.metrics.failure(caller, string(e.id), f.Kind)
}

func (p *Pool) failed(e *endpoint, now time.Time, trial bool, f *Fault) {
	if e.breaker.fail(now, trial) {
		p.metrics.breakers.add(context.Background(), 1)
		p.log.Warn("tokenizer endpoint is suspended after repeated failures",
			slog.String("replica", string(e.id)), slog.String("kind", string(f.Kind)), slog.Any("cause", f.Cause))
	}
}

func outcomeOf(err error) string {
	var f *Fault
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &f):
		return string(f.Kind)
	}
	return "client_fault"
}
