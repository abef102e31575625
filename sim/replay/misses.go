package replay

import "math"

// misses counts the requests that miss the goal, by the target that they miss first. The first tenth of the requests, in which the fleet
// fills, is not counted.
type misses struct {
	goal Goal
	from int // the first call that is counted
	// most ends the run when more calls have missed the goal; negative: never.
	most int
	// late calls missed the time to the first token, slow ones the time of the others.
	late, slow int
}

func newMisses(goal Goal, calls int) misses {
	return misses{goal: goal, from: calls / 10, most: -1}
}

// begun counts a call that got its first token after wait seconds.
func (m *misses) begun(call int, wait float64) {
	if call >= m.from && wait > m.goal.TTFT {
		m.late++
	}
}

// finished counts a call that got its first token after wait seconds, and out tokens of which those after the first took rest seconds.
func (m *misses) finished(call int, wait, rest float64, out int) {
	if call >= m.from && wait <= m.goal.TTFT && out > 1 && rest/float64(out-1) > m.goal.TPOT {
		m.slow++
	}
}

// over reports whether more calls than allowed have missed the goal.
func (m *misses) over() bool { return m.most >= 0 && m.late+m.slow > m.most }

// allow sets the bound of over to the share that may miss the goal.
func (m *misses) allow(share float64, calls int) {
	m.most = int(math.Floor(share*float64(calls-m.from) + 1e-9))
}
