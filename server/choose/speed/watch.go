package speed

import (
	"math"
	"time"
)

const (
	// wrong is the factor from which predictions count as wrong, right the one below which they are
	// right again, and patience for how long they must be wrong before the kind's median is used.
	wrong    = 3
	right    = 2
	patience = time.Minute
	// memory is the time constant of the mean error.
	memory = 15 * time.Second
)

// watch follows how far a rank's predictions are from the outcomes.
type watch struct {
	mean       float64   // of ln(predicted ÷ actual), fading
	at         time.Time // of the last one
	wrongSince time.Time // zero while right
	distrusted bool
}

// see adds a prediction and its outcome. It reports whether trust changed.
func (w *watch) see(predicted, actual float64, now time.Time) bool {
	if predicted <= 0 || actual <= 0 {
		return false
	}
	share := 0.2 // a rank that gets few requests must not be judged by one of them
	if !w.at.IsZero() {
		share = min(share, 1-math.Exp(-now.Sub(w.at).Seconds()/memory.Seconds())+0.02)
	}
	w.at = now
	w.mean += share * (math.Log(predicted/actual) - w.mean)
	switch off := math.Abs(w.mean); {
	case off < math.Log(right):
		w.wrongSince = time.Time{}
	case off > math.Log(wrong) && w.wrongSince.IsZero():
		w.wrongSince = now
	}
	if w.wrongSince.IsZero() || now.Sub(w.wrongSince) < patience {
		return false
	}
	// The Model in use has been wrong for a while: try the other one.
	w.distrusted = !w.distrusted
	w.wrongSince, w.mean = time.Time{}, 0
	return true
}

// error is the mean of predicted ÷ actual.
func (w *watch) error() float64 { return math.Exp(w.mean) }
