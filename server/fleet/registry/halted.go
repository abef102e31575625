package registry

import (
	"bytes"
	"context"
	"errors"
)

// pausedPath is where vLLM says whether it is paused. Only engines in development mode have it.
const pausedPath = "/is_paused"

// pauseProbe asks whether an engine is paused. An engine without the route is not asked again in its life.
type pauseProbe struct{ without bool }

// forget has the next engine process asked.
func (p *pauseProbe) forget() { p.without = false }

// look asks, and notes the answer in the pulse. Without an answer, the last one holds.
func (p *pauseProbe) look(ctx context.Context, a *asker, to *pulse) {
	if p.without {
		return
	}
	body, err := a.get(ctx, pausedPath)
	if refused, ok := errors.AsType[statusError](err); ok {
		p.without = refused.status < 500
		to.paused.Store(false)
	}
	if err == nil {
		to.paused.Store(bytes.Contains(bytes.ReplaceAll(body, []byte(" "), nil), []byte(`"is_paused":true`)))
	}
}
