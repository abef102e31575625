package decision

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
}

// IsSplit reports whether one rank computes the prompt and another one writes the answer.
func (w *Way) IsSplit() bool { return w.Prefill.Slot != w.Decode.Slot }

// Kind names the way in metrics and records: whole or split.
func (w *Way) Kind() string {
	if w.IsSplit() {
		return "split"
	}
	return "whole"
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
