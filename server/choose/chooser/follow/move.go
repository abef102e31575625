package follow

import (
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
)

// Move is the transfer of a split request's cache. It is an Observer.
type Move struct {
	Clock  *clock.Clock
	Lane   *transfer.Lane
	Tokens int
	// Rest is the predicted time in seconds from the end of the transfer to the first token.
	Rest float64
	Sent atomic.Int64 // on the chooser's scale; 0: not yet
	// Counts is set when the time to the first token shows the transfer's.
	Counts bool
}

// FirstToken implements Observer: the lane learns the time of the transfer.
func (m *Move) FirstToken(now time.Time, _ int) {
	sent := m.Sent.Load()
	if sent == 0 || !m.Counts {
		return
	}
	took := time.Duration(m.Clock.Since(now) - sent).Seconds()
	m.Lane.Learn(m.Tokens, max(took-m.Rest, took/4))
}

// Progress implements Observer.
func (*Move) Progress(int) {}

// Ended implements Observer.
func (*Move) Ended(*ask.End) {}
