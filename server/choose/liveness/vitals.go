package liveness

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Vitals has the facts about a rank's engine that other packages know.
type Vitals struct {
	// Counted is when the engine's own counters were read last; zero: they are not. Count grows with every
	// token that it computes, KVUsage is the share of KV blocks in use.
	Counted time.Time
	Count   uint64
	KVUsage float64
	// Requests are the requests that the engine reports.
	Requests int
	// Asked is when the unanswered health probe was sent (zero: there is none), Late how much later than usual
	// its answer is, Answered when the last answer came.
	Asked    time.Time
	Late     time.Duration
	Answered time.Time
	// Unhealthy is set while the replica counts as unhealthy, Leaving while its requests are to move to other replicas,
	// Halted while the engine computes nothing until an operator resumes it: it is paused or asleep.
	Unhealthy, Leaving, Halted bool
	// View is the rank's replica as it is now; nil: it is not known.
	View *replica.Replica
}

// Evidence is the reason why a rank counts as stalled.
type Evidence uint8

// The kinds of evidence.
const (
	None Evidence = iota
	// Probe: its replica does not answer its health probe either, while others do.
	Probe
	// Counters: with requests there, the engine's own counters stand still.
	Counters
	// Silence: the engine sends nothing for much longer than ever before, and than predicted.
	Silence
	// Halted: the engine says that it is paused or asleep.
	Halted
)

// String gives the evidence in the form that metrics and logs use.
func (e Evidence) String() string {
	return [...]string{"none", "probe", "counters", "silence", "halted"}[e]
}
