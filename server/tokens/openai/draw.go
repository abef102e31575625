package openai

import "strconv"

// draw is how the tokens of an answer are drawn.
type draw struct {
	// greedy: the most probable token is taken each time, so nothing is drawn.
	greedy bool
	// seeded: the random numbers begin with seed.
	seeded bool
	seed   int64
}

func drawOf(r *Request) draw {
	seed, err := strconv.ParseInt(string(r.Raw("seed")), 10, 64)
	d := draw{seeded: err == nil, seed: seed}
	switch string(r.Raw("temperature")) {
	case "0", "0.0":
		d.greedy = true
	}
	return d
}

// Seed is the seed of a continuation behind so many tokens of the answer: not the client's, whose random numbers chose these tokens
// already, but the same whenever that many came before. It is false where nothing is drawn or the client gave none.
func (d draw) Seed(answer int) (int64, bool) {
	if !d.seeded || d.greedy {
		return 0, false
	}
	next := int64((uint64(d.seed) + uint64(answer)*0x9e3779b97f4a7c15) >> 1)
	switch {
	case answer == 0:
		return d.seed, true
	case next == d.seed:
		next++
	}
	return next, true
}
