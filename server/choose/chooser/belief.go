package chooser

import (
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// belief is the index's belief that the rank has the prompt in its cache.
type belief struct {
	endOnly
	*kvindex.Belief
}

// Ended implements Observer: a request without a first token never reached the cache.
func (b *belief) Ended(end *End) {
	if end.First.IsZero() {
		b.End()
	}
}
