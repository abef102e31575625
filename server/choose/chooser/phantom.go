package chooser

import (
	"time"
)

// doubtAfter is how old a booking of an external caller must be, at least, when the engine is asked whether it has the
// request. vLLM's gauges move with its steps, so a booking whose first step takes longer is given two of those.
const doubtAfter = 500 * time.Millisecond

// doubtAt is when the engine should show the choice's request.
func (c *Choice) doubtAt() time.Time {
	step := min(c.Decision.Pick().FullStep, c.prefills)
	return c.at.Add(max(doubtAfter, duration(2*step)))
}

// lend adds a booking that its caller has yet to send; the vigil's mu is not held.
func (w *vigil) lend(c *Choice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lent == nil {
		w.lent = map[*Choice]struct{}{}
	}
	w.lent[c] = struct{}{}
}

// regain takes it off again: it was reported on, ended or doubted.
func (w *vigil) regain(c *Choice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.lent, c)
}

// phantoms lists the bookings of external callers whose requests the engine does not show, the oldest first, and
// reports whether its metrics must be read anew to know. sent are the other requests that it must have by now.
func (w *vigil) phantoms(v *Vitals, now time.Time) (list []*Choice, ask bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lent) == 0 || v.Counted.IsZero() {
		return nil, false
	}
	missing := -v.Requests
	for c := w.first; c != nil; c = c.nextFlying {
		if v.Counted.Sub(c.at) >= doubtAfter {
			missing++
		}
	}
	for c := range w.lent {
		switch due := c.doubtAt(); {
		case !v.Counted.Before(due):
			missing++
			list = append(list, c)
		case !now.Before(due):
			ask = true
		}
	}
	// What runs may be any of them: those that are left have the benefit of the doubt, as have a caller's that reported.
	sortByAge(list)
	return list[:min(max(missing, 0), len(list))], ask
}

func sortByAge(list []*Choice) {
	for i := range list { // short, and mostly in order
		for j := i; j > 0 && list[j].at.Before(list[j-1].at); j-- {
			list[j], list[j-1] = list[j-1], list[j]
		}
	}
}

// doubt takes the weight off the bookings that the engine shows no requests for.
func (c *Chooser) doubt(r *rank, v *Vitals, now time.Time) {
	list, ask := r.vigil.phantoms(v, now)
	if ask && c.params.Ask != nil {
		c.params.Ask(r.slot)
	}
	freed := false
	for _, choice := range list {
		r.vigil.regain(choice)
		if choice.reservation.Doubt() {
			freed = true
			choice.belief.End()
			r.unroute(choice.prefills, c.since(now))
		}
	}
	if freed {
		c.freed(r.slot)
	}
}
