package rank

import (
	"sync/atomic"
)

// off is the factor from which on a predicted first token counts as wrong.
const off = 3

// The results of a prediction.
const (
	predictedClose = iota
	predictedEarly // it came much sooner
	predictedLate  // it came much later
	predictedResults
)

// accuracy counts the predicted first tokens of one rank by result. Its zero value is ready.
type accuracy [predictedResults]atomic.Int64

// Add counts a prediction by its ratio to the actual time.
func (a *accuracy) Add(ratio float64) {
	switch {
	case ratio > off:
		a[predictedEarly].Add(1)
	case ratio < 1./off:
		a[predictedLate].Add(1)
	default:
		a[predictedClose].Add(1)
	}
}
