package rank

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/number"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// busyMemory is the time constant of the load estimate ρ.
const busyMemory = 60 * time.Second

// lately is the work routed to a rank, per second and fading with busyMemory.
type lately struct {
	busy    number.Float // seconds of prefill
	returns number.Float // requests that came back to the rank's blocks
	saved   number.Float // seconds of prefill that those were spared
	squares number.Float // half the squared seconds of prefill: the mean time left of it
	at      atomic.Int64 // when it was brought up to date, in nanoseconds of the chooser's clock
}

// Read returns the share of the rank's time that the prefill takes, and fills in the rest.
func (l *lately) Read(now int64, to *decision.Revisits) (busy float64) {
	left := l.fade(now)
	to.Residual = left * l.squares.Get()
	if returns := l.returns.Get(); returns > 0 {
		to.Returns, to.Saved = left*returns, l.saved.Get()/returns
	}
	return left * l.busy.Get()
}

// fade returns the rest of the count at now.
func (l *lately) fade(now int64) float64 {
	if l.busy.Get() == 0 {
		return 1
	}
	return decay(float64(now-l.at.Load()) * (1 / float64(busyMemory)))
}

// decay is e^-x to within 1e-8 of it, in a part of the time that math.Exp takes.
func decay(x float64) float64 {
	if !(x >= 0 && x < float64(len(wholes))) {
		return math.Exp(-x)
	}
	n := int(x)
	k := int((x - float64(n)) * float64(len(parts)))
	r := x - float64(n) - float64(k)/float64(len(parts))
	return wholes[n] * parts[k] * (1 - r*(1-r*(0.5-r*(1.0/6))))
}

var (
	wholes = decays(32, 1)
	parts  = decays(64, 64)
)

func decays(n int, of float64) []float64 {
	list := make([]float64, n)
	for i := range list {
		list[i] = math.Exp(-float64(i) / of)
	}
	return list
}
