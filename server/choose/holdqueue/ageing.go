package holdqueue

// ageing is the work in seconds that a second of waiting makes up for: a request with a minute of prefill is overtaken by
// cheaper ones of its tenant for at most ten minutes. docs/adr/007-hold-queue.md.
const ageing = 0.1

// key is the ticket's work plus its ageing: a later arrival comes later, one with seniority sooner. mu is held.
func (l *Line) key(t *Ticket) float64 {
	return t.Work + ageing*(t.arrived.Sub(l.start)-t.Seniority).Seconds()
}
