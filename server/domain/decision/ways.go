package decision

import "time"

// Way is one way to serve a request, with its price.
type Way struct {
	// Prefill computes the prompt and Decode writes the answer: the same rank where the request is served whole.
	Prefill, Decode RankID
	// Held are the prompt's tokens that Prefill holds, Moved the tokens whose cache moves from there to Decode.
	Held, Moved uint32
	// Cost is the price, in the policy's unit (seconds), and TTFT the predicted time to the first token.
	Cost, TTFT float64
	// Queue, Compute and Transfer are the parts of the time until the answer begins, in seconds: the wait for the rank that computes, the
	// prompt, and the move of the cache.
	Queue, Compute, Transfer float64
	// Copy is set for a copy of the prompt's beginning, from Prefill to Decode, for which the request has waited: Began is when it began, Ended
	// when it ended, zero if it had not yet. Cost and TTFT include the copy.
	Copy         bool
	Began, Ended time.Time
}

// IsSplit reports whether one rank computes the prompt and another one writes the answer.
func (w *Way) IsSplit() bool { return !w.Copy && w.Prefill.Slot != w.Decode.Slot }

// Kind names the way in metrics and records: whole, split or copy.
func (w *Way) Kind() string {
	switch {
	case w.Copy:
		return "copy"
	case w.IsSplit():
		return "split"
	}
	return "whole"
}

// Copied returns the copy of the prompt's beginning for which the request has waited last, nil for none.
func (d *Decision) Copied() *Way {
	for i := range d.Ways {
		if w := &d.Ways[i]; w.Copy {
			return w
		}
	}
	return nil
}

// Split returns the way of a request that is split between two ranks, nil for any other.
func (d *Decision) Split() *Way {
	if len(d.Ways) > 0 && d.Ways[0].IsSplit() {
		return &d.Ways[0]
	}
	return nil
}

// PredictedTTFT is the time in seconds to the first token that the decision predicts; 0 without a pick.
func (d *Decision) PredictedTTFT() float64 {
	if w := d.Split(); w != nil {
		return w.TTFT
	}
	if pick := d.Pick(); pick != nil {
		return pick.TTFT
	}
	return 0
}

// Expected is how many of the prompt's tokens the chosen rank was believed to hold, in all tiers.
func (d *Decision) Expected() int {
	if w := d.Split(); w != nil {
		return int(w.Held)
	}
	if pick := d.Pick(); pick != nil {
		return int(pick.Overlap.Tokens())
	}
	return 0
}
