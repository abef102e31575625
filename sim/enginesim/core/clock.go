package core

import "time"

// Clock counts how well real time kept up with the modelled time. A machine that is too busy for the
// engines it simulates ends steps late; figures measured on it then say little.
type Clock struct {
	// Steps were computed; Modelled is the time that they were to take.
	Steps    uint64
	Modelled time.Duration
	// Late sums how much later than planned steps ended, MostLate is the largest of it, and LateSteps
	// counts steps late by more than lateStep.
	Late, MostLate time.Duration
	LateSteps      uint64
	// Lost is the time that later steps did not make up for.
	Lost time.Duration
}

// lateStep is when a step counts as late.
const lateStep = 5 * time.Millisecond

// stepped notes a step of that modelled time which was due when now.
func (c *Core) stepped(took time.Duration, due, now time.Time) {
	late := max(0, now.Sub(due))
	c.mu.Lock()
	defer c.mu.Unlock()
	k := &c.clock
	k.Steps++
	k.Modelled += took
	k.Late += late
	k.MostLate = max(k.MostLate, late)
	if late > lateStep {
		k.LateSteps++
	}
}

// slipped notes time that is not made up for.
func (c *Core) slipped(lost time.Duration) {
	c.mu.Lock()
	c.clock.Lost += lost
	c.mu.Unlock()
}
