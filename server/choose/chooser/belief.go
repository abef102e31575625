package chooser

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// belief is the index's belief that the rank has the prompt in its cache.
type belief struct {
	ask.EndOnly
	*kvindex.Belief
}

// Ended implements Observer: a request without a first token never reached the cache.
func (b *belief) Ended(end *ask.End) {
	if end.First.IsZero() {
		b.End()
	}
}
