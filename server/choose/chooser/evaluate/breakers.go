package evaluate

import (
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Gate keeps requests from replicas that fail; package breaker has one.
type Gate interface {
	// Shut reports whether any replica may be barred now. It is cheap.
	Shut() bool
	// Bar appends the replicas of usable that get no request now; avoid are the replicas that another router finds broken,
	// tried is how many other replicas have failed the request. It never appends all of usable.
	Bar(barred, usable, avoid []replica.ID, tried int) []replica.ID
}

// NoGate bars the replicas that another router finds broken.
type NoGate struct{}

func (NoGate) Shut() bool { return false }

func (NoGate) Bar(barred, usable, avoid []replica.ID, _ int) []replica.ID {
	from := len(barred)
	for _, id := range usable {
		if slices.Contains(avoid, id) {
			barred = append(barred, id)
		}
	}
	if len(barred)-from == len(usable) {
		return barred[:from]
	}
	return barred
}
