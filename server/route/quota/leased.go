package quota

import "time"

// takeLeased takes what a request needs from the lease. It asks the owner for more where that is too little, and takes this router's
// share where the owner does not answer. It unlocks mu, which is held, while it waits.
func (t *tenant) takeLeased(d demand, fleet Fleet, now time.Time) *Refusal {
	for asks := 0; ; asks++ {
		p := t.part
		if p.owner == "" { // it became this router's
			return t.take(d, fleet, now)
		}
		l := &p.lease
		cause, lacks := l.lacks(d)
		if !lacks {
			l.take(d, now)
			return nil
		}
		if asks == maxAsks || !p.mayAsk(cause, d, now) {
			if l.borrow(d, 1/float64(p.view.Seen()), now) {
				t.counted.alone++
				l.take(d, now)
				return nil
			}
			return t.refuse(cause, p.wait(cause, d, now), now)
		}
		if l.asking != nil {
			answered := t.await(d, fleet.Patience())
			now = time.Now()
			if !answered && p.owner != "" {
				l.fallSilent(now)
			}
			continue
		}
		owner, report := p.owner, l.report(d, p.tight(), now)
		t.mu.Unlock()
		grant, err := fleet.Ask(owner, report)
		t.mu.Lock()
		now = time.Now()
		if err != nil {
			p.unanswered(owner, now)
			continue
		}
		p.answered(owner, grant, now)
		if cause, lacks := l.lacks(d); lacks && p.owner == owner {
			p.lease.refused[cause] = now
		}
	}
}

// await waits until the report that is on its way is answered, or as long as the owner may be silent. It unlocks mu, which is held.
func (t *tenant) await(d demand, patience time.Duration) (answered bool) {
	l := &t.part.lease
	answer := l.asking
	l.waiting.add(d, 1)
	t.mu.Unlock()
	timer := time.NewTimer(patience)
	select {
	case <-answer:
		answered = true
	case <-timer.C:
	}
	timer.Stop()
	t.mu.Lock()
	l.waiting.add(d, -1)
	return answered
}
