package speed

import "time"

const (
	// followEvery bounds how often ranks that know little are updated, atOnce how many ranks are visited for that at a time. Larger kinds are
	// visited part by part: a visit of thousands of ranks would delay the first token that caused it.
	followEvery = 100 * time.Millisecond
	atOnce      = 64
)

// turns has the ranks of a kind visited in turn. The mu of their kind guards it.
type turns struct {
	next   int       // the place of the next rank to visit
	urgent int       // how many ranks are to be visited without a pause
	last   time.Time // of the last visit
}

// hurry has all ranks visited without a pause, since one more rank has experience, in addition to known others. Among many ranks each doubling
// of their number counts: one more hardly moves the median.
func (t *turns) hurry(known, all int) {
	if all <= atOnce || known&(known-1) == 0 {
		t.urgent = all
	}
}

// take returns the part of all ranks whose turn it is at now, empty before the next one is due.
func (t *turns) take(all []*Rank, now time.Time) []*Rank {
	if t.urgent <= 0 && now.Sub(t.last) < followEvery {
		return nil
	}
	from := t.next
	if from >= len(all) { // ranks were removed
		from = 0
	}
	to := min(from+atOnce, len(all))
	t.next, t.last = to, now
	t.urgent -= to - from
	return all[from:to]
}
