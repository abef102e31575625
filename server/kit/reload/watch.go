package reload

import (
	"context"
	"time"
)

// Watch calls act when what look returns is not what was seen before, and stays as it is for one more look, until ctx ends. It asks the file
// system again and again: notices of changes do not come from network file systems, nor for what is behind a chain of links,
// which Kubernetes swaps.
func Watch(ctx context.Context, every time.Duration, seen string, look func() string, act func()) {
	before := seen
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := look()
		if now == before && now != seen {
			seen = now
			act()
		}
		before = now
	}
}
