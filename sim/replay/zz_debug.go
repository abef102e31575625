package replay

import (
	"fmt"
	"os"
)

func (s *sim) debug(goal Goal) {
	if os.Getenv("DBG") == "" {
		return
	}
	const parts = 6
	var n, good, slow, late [parts]int
	for i, f := range s.first {
		k := i * parts / len(s.first)
		n[k]++
		pace := (s.done[i] - f) / float64(max(1, s.trace.Calls[i].Out-1))
		l, p := f-s.arrived[i] > goal.TTFT, pace > goal.TPOT
		if !l && !p {
			good[k]++
		}
		if l {
			late[k]++
		}
		if p {
			slow[k]++
		}
	}
	for k := range parts {
		fmt.Fprintf(os.Stderr, "part %d: %d good %.3f late %d slow %d\n", k, n[k], float64(good[k])/float64(n[k]), late[k], slow[k])
	}
	for _, e := range s.engines {
		fmt.Fprintf(os.Stderr, "engine %d: computed %.0f busy %.1f made %d\n", e.slot, e.computed, e.busy, e.machine.Counts().GenerationTokens)
	}
}
