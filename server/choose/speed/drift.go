package speed

import (
	"math"
	"time"
)

const (
	// offBy is the factor from which a sample contradicts the Model, persists the number of such samples in succession, all to the same
	// side, that show a change of the engine: the samples before them are forgotten. More than that happens by chance in few engines.
	// A sample that is off to that side by less than offBy, and more than nearly, neither counts nor ends the succession: the first tokens
	// of requests that shared a step divide its time by chance.
	offBy, nearly, persists = 1.8, 1.35, 3
	// leastEvidence is the weight that a sample needs to contradict the Model.
	leastEvidence = 0.15
)

// drift notices that an engine became faster or slower.
type drift struct {
	run    int // samples in succession that are off to the same side, from one on that contradicts the Model
	off    int // samples of them that contradict it
	slower bool
	since  time.Time // of the first of them
	ready  bool      // the samples so far are old: one that contradicts the Model is enough
}

// see takes in by which factor a sample took longer than the Model says. It returns how many of the last samples show a change, 0 for none.
func (d *drift) see(factor float64, now time.Time) int {
	l := math.Log(factor)
	slower := l > 0
	ready := d.ready
	d.ready = false
	if !(math.Abs(l) >= math.Log(nearly)) || slower != d.slower {
		d.run, d.off, d.slower = 0, 0, slower
	}
	contradicts := math.Abs(l) >= math.Log(offBy)
	if d.run == 0 && !contradicts {
		return 0
	}
	if d.run == 0 {
		d.since = now
	}
	d.run++
	if contradicts {
		d.off++
	}
	if !contradicts || d.off < persists && !ready {
		return 0
	}
	return d.run
}
