package follow

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// Belief is the index's belief that the rank has the prompt in its cache.
type Belief struct {
	ask.EndOnly
	*kvindex.Belief
}

// Ended implements Observer: a request without a first token never reached the cache.
func (b *Belief) Ended(end *ask.End) {
	if end.First.IsZero() {
		b.End()
	}
}
