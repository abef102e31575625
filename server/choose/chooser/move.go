package chooser

import (
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
)

// move is the transfer of a split request's cache. It is an Observer.
type move struct {
	clock  *clock.Clock
	lane   *transfer.Lane
	tokens int
	// rest is the predicted time in seconds from the end of the transfer to the first token.
	rest float64
	sent atomic.Int64 // on the chooser's scale; 0: not yet
	// counts is set when the time to the first token shows the transfer's.
	counts bool
}

// FirstToken implements Observer: the lane learns the time of the transfer.
func (m *move) FirstToken(now time.Time, _ int) {
	sent := m.sent.Load()
	if sent == 0 || !m.counts {
		return
	}
	took := time.Duration(m.clock.Since(now) - sent).Seconds()
	m.lane.Learn(m.tokens, max(took-m.rest, took/4))
}

// Progress implements Observer.
func (*move) Progress(int) {}

// Ended implements Observer.
func (*move) Ended(*ask.End) {}
