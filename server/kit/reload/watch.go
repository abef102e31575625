package reload

import (
	"context"
	"time"
)

// Watch calls act when the result of look differs from seen, and stays the same for one more look, until ctx ends. It asks the file
// system again and again: notices of changes do not come from network file systems, nor for files behind a chain of links,
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
