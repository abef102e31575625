package speed

import (
	"math"
	"time"
)

const (
	// offBy is the factor from which a sample contradicts the Model, persists the number of such samples in succession, all to the same
	// side, that show a change of the engine: the samples before them are forgotten. More than that happens by chance in few engines.
	offBy, persists = 1.8, 3
	// leastEvidence is the weight that a sample needs to contradict the Model.
	leastEvidence = 0.15
)

// drift notices that an engine became faster or slower.
type drift struct {
	run    int // samples in succession that contradict the Model to the same side
	slower bool
	since  time.Time // of the first of them
	ready  bool      // the samples so far are old: one that contradicts the Model is enough
}

// see takes in by which factor a sample took longer than the Model says. It returns how many of the last samples show a change, 0 for none.
func (d *drift) see(factor float64, now time.Time) int {
	l := math.Log(factor)
	ready := d.ready
	d.ready = false
	if !(math.Abs(l) >= math.Log(offBy)) {
		d.run = 0
		return 0
	}
	if slower := l > 0; slower != d.slower {
		d.run, d.slower = 0, slower
	}
	if d.run == 0 {
		d.since = now
	}
	if d.run++; d.run < persists && !ready {
		return 0
	}
	return d.run
}
