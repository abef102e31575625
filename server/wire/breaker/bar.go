package breaker

import (
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Bar appends to barred the replicas of usable that get no request now: replicas with an open circuit and, of avoid, replicas that
// another router finds broken. Of the replicas that were reached and failed, at most the share MaxEjected is barred, the first ones of
// usable. Tried is how many other replicas have failed the request; they count for the share. When all would be barred, none is: trying
// is better than rejecting every request. It is the only place that decides this.
func (b *Breaker) Bar(barred, usable, avoid []replica.ID, tried int) []replica.ID {
	if len(avoid) == 0 && !b.Shut() {
		return barred
	}
	from := len(barred)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	limit := int(b.cfg.Load().MaxEjected * float64(len(usable)+tried))
	ejected, over := 0, 0
	for _, id := range usable {
		c := b.circuits[id]
		open := c != nil && c.state(now) == Open
		switch {
		case open && (!c.open || c.firm): // it asked for a pause, or cannot be reached
			barred = append(barred, id)
		case !open && !slices.Contains(avoid, id):
		case ejected < limit:
			barred = append(barred, id)
			ejected++
		default:
			over++
		}
	}
	if len(barred)-from == len(usable) {
		b.metrics.Used.Add(reasonAll)
		return barred[:from]
	}
	if over > 0 {
		b.metrics.Used.Add(reasonShare)
	}
	return barred
}
