package conduct

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// JudgeEvery is how often the ranks are judged, and largeFleet the number of ranks from which it is less often.
	JudgeEvery = 200 * time.Millisecond
	largeFleet = 200
	// A rank is suspected when it is slower than its equals by more than tolerated, and cleared when by less than fair; its tokens cost
	// their time beyond fair. Ranks of other kinds are equals only by their model: hardware may differ.
	tolerated, fair         = 3.0, 2.0
	toleratedWide, fairWide = 5.0, 4.0
	// A rank that is slower than its equals by more than broken gets probes alone, while there are others.
	broken = 8.0
	// leastWeight is the time in seconds of streams that a judgement needs.
	leastWeight = 0.5
	emptyDrag   = 30.0
	leastTrust  = 0.02
)

// Fleet judges ranks by their equals. The zero value is ready.
type Fleet struct {
	// next is when the ranks are judged again, in nanoseconds.
	next atomic.Int64

	mu    sync.Mutex
	ranks []*Rank        // guarded by mu
	by    map[any]*tally // of groups; guarded by mu
	work  workspace      // guarded by mu
}

// evidence is the input of a judgement.
type evidence struct {
	own     pace
	streams int
	// others is the median of the equals, tolerated and fair are the bounds that go with them.
	others          pace
	tolerated, fair float64
}

// known reports whether there is enough to judge by.
func (e *evidence) known() bool { return e.streams >= distinct && e.own.weight >= leastWeight }

// tally lists a group's ratios, each in ascending order.
type tally struct{ likely, most, blank, proven []float64 }

// Add makes a Rank. group is comparable and names its equals: ranks of one kind. wider names the ranks that it is compared with when it
// has none: ranks with the same model.
func (f *Fleet) Add(group, wider any) *Rank {
	r := &Rank{group: group, wider: wider}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ranks = append(f.ranks, r)
	return r
}

// Move gives a rank other equals.
func (f *Fleet) Move(r *Rank, group, wider any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.group, r.wider = group, wider
}

// Remove removes a rank.
func (f *Fleet) Remove(r *Rank) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ranks = slices.DeleteFunc(f.ranks, func(o *Rank) bool { return o == r })
}

// Due reports whether the ranks are to be judged now. It is true for one of several callers.
func (f *Fleet) Due(now time.Time) bool {
	next := f.next.Load()
	return now.UnixNano() >= next && f.next.CompareAndSwap(next, now.Add(JudgeEvery).UnixNano())
}

// Change is a rank whose suspicions have changed.
type Change struct {
	Rank          *Rank
	Before, After Suspicion
}

// Judge compares all ranks with their equals and returns the changes of suspicions.
func (f *Fleet) Judge(now time.Time) (changes []Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next.Store(now.Add(max(JudgeEvery, JudgeEvery*time.Duration(len(f.ranks))/largeFleet)).UnixNano())
	if f.by == nil {
		f.by = map[any]*tally{}
	}
	for _, t := range f.by {
		t.likely, t.most, t.blank, t.proven = t.likely[:0], t.most[:0], t.blank[:0], t.proven[:0]
	}
	for _, r := range f.ranks {
		r.look(now, &f.work)
		f.count(r.group, r)
		f.count(r.wider, r)
	}
	for key, t := range f.by {
		if len(t.likely)+len(t.blank)+len(t.proven) == 0 {
			delete(f.by, key)
			continue
		}
		slices.Sort(t.likely)
		slices.Sort(t.most)
		slices.Sort(t.blank)
		slices.Sort(t.proven)
	}
	for _, r := range f.ranks {
		if before, after := r.judge(f.by[r.group], f.by[r.wider], now); before != after {
			changes = append(changes, Change{r, before, after})
		}
	}
	f.renew(changes)
	return changes
}

// renew drops the samples of ranks whose equals are others from now on: their typical values were wrong. f.mu is held.
func (f *Fleet) renew(changes []Change) {
	for _, c := range changes {
		if (c.Before^c.After)&Slow == 0 {
			continue
		}
		for _, r := range f.ranks {
			if r.group == c.Rank.group {
				r.forget()
			}
		}
	}
}

// count adds a rank to a group.
func (f *Fleet) count(group any, r *Rank) {
	t := f.by[group]
	if t == nil {
		t = &tally{}
		f.by[group] = t
	}
	if r.now.known() {
		t.likely, t.most = append(t.likely, r.now.own.likely), append(t.most, r.now.own.most)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answers.count >= leastAnswers {
		t.blank = append(t.blank, r.answers.blank)
	}
	if p := r.claims.proven(); p >= 0 {
		t.proven = append(t.proven, p)
	}
}

// others is the median of a sorted list without one value that it contains, when among is set; false when nothing is left. Of an even number it
// is the upper or lower one of the two in the middle.
func others(list []float64, own float64, among, upper bool) (float64, bool) {
	n := len(list)
	at := n
	if among {
		var found bool
		if at, found = slices.BinarySearch(list, own); found {
			n--
		} else {
			at = len(list)
		}
	}
	if n == 0 {
		return 0, false
	}
	middle := (n - 1) / 2
	if upper {
		middle = n / 2
	}
	if at <= middle {
		middle++
	}
	return list[middle], true
}

// judge compares the rank with its equals.
func (r *Rank) judge(group, wider *tally, now time.Time) (before, after Suspicion) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.suspicions
	known := r.now.known()
	r.equals(group, wider, known)
	after = r.suspect(before, known, r.blanks(group, wider), now)
	trust := r.trust(group, wider)
	if trust < 1 {
		after |= Unproven
	}
	if after&(Slow|Empty) != 0 && before&(Slow|Empty) == 0 {
		r.probes.begin(now)
	}
	r.suspicions = after
	r.publish(known, trust)
	return before, after
}

// equals sets the ranks that r is compared with. r.mu is held.
func (r *Rank) equals(group, wider *tally, known bool) {
	e := &r.now
	for i, t := range [...]*tally{group, wider} {
		if t == nil {
			continue
		}
		likely, ok := others(t.likely, e.own.likely, known, true)
		if !ok {
			continue
		}
		most, _ := others(t.most, e.own.most, known, true)
		e.others.likely, e.others.most = likely, most
		e.tolerated, e.fair = tolerated, fair
		if i > 0 {
			e.tolerated, e.fair = toleratedWide, fairWide
		}
		return
	}
	e.others = pace{}
}

// blanks is the median share of short answers of the rank's equals; below zero when it is unknown. r.mu is held.
func (r *Rank) blanks(group, wider *tally) float64 {
	for _, t := range [...]*tally{group, wider} {
		if t == nil {
			continue
		}
		if v, ok := others(t.blank, r.answers.blank, r.answers.count >= leastAnswers, true); ok {
			return v
		}
	}
	return -1
}

// suspect says of what the rank is suspected now. r.mu is held.
func (r *Rank) suspect(before Suspicion, known bool, blanks float64, now time.Time) (after Suspicion) {
	e := &r.now
	slow := before&Slow != 0
	if known && e.others.likely > 0 {
		ratio := e.others.ratio(e.own)
		// Its decoding alone, without any prefill, takes longer than the others' decoding with prefills: no model of prefills is needed to see
		// that.
		surely := e.own.least > e.others.most
		switch {
		case ratio > e.tolerated && surely:
			slow = true
		case e.own.strict < e.fair*e.others.likely:
			slow = false
		}
	}
	if slow && before&Slow != 0 && r.probes.good >= cleared {
		slow = false
		r.samples.added = 0 // from before
	}
	if slow {
		after |= Slow
	}
	if r.answers.suspect(before&Empty != 0, blanks) {
		after |= Empty
	}
	return after
}

// trust is the share of the rank's claims that counts. r.mu is held.
func (r *Rank) trust(group, wider *tally) float64 {
	own := r.claims.proven()
	if own < 0 {
		return 1
	}
	for _, t := range [...]*tally{group, wider} {
		if t == nil {
			continue
		}
		usual, ok := others(t.proven, own, true, false)
		if !ok {
			continue
		}
		if usual < likeliest || own >= proof*usual {
			return 1
		}
		return max(own/usual, leastTrust)
	}
	return 1
}

// publish makes the rank's record readable. r.mu is held.
func (r *Rank) publish(known bool, trust float64) {
	e, old := &r.now, r.published.avoided.Load()
	rec := Record{Suspicions: r.suspicions, EmptyShare: r.answers.empty, Trust: trust}
	if known {
		rec.Token = e.own.token
		if e.others.likely > 0 { // between the sure figure and the reported one
			rec.Slowness = math.Sqrt(e.own.likely*e.own.strict) / e.others.likely
		}
	}
	switch {
	case r.suspicions&Slow == 0:
	case known && rec.Slowness > e.fair:
		rec.perToken = rec.Token * (1 - e.fair/rec.Slowness)
		if rec.Slowness > broken*e.fair/fair {
			rec.fixed = maxDrag
		}
	case old != nil: // nothing new is known of it
		rec.perToken, rec.fixed = old.perToken, old.fixed
		rec.Slowness, rec.Token = old.Slowness, old.Token
	}
	if r.suspicions&Empty != 0 {
		rec.fixed = max(rec.fixed, emptyDrag)
	}
	r.published.set(&rec)
}
