package remote

import (
	"context"
	"errors"
	"time"
)

// attempt asks one endpoint once, in the better of the two forms that it understands.
func (p *Pool) attempt(ctx context.Context, e *endpoint, d *dialogue, parent string) (*Answer, error) {
	j := d.job
	select {
	case e.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, p.ended(ctx)
	}
	defer func() { <-e.slots }()
	start := time.Now()
	e.lastUsed.Store(start.UnixNano())
	pass, ok := e.breaker.Allow(e.id)
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
	p.judge(ctx, e, d, err, pass, took)
	p.metrics.observeCall(ctx, e, callLabels{route, outcomeOf(err)}, took)
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
