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
	// Fetches is the account of the rank that reads the cache; nil: it is not known.
	Fetches *transfer.Fetches
}

// LeastRead is the share of the tokens that a rank has read of late, by its engine's count, for the time of a transfer to count: it computes the others.
const LeastRead = 0.9

// FirstToken implements Observer: the lane learns the time of the transfer.
func (m *Move) FirstToken(now time.Time, _ int) {
	sent := m.Sent.Load()
	if sent == 0 || !m.Counts || m.Fetches != nil && m.Fetches.Share() < LeastRead {
		return
	}
	took := time.Duration(m.Clock.Since(now) - sent).Seconds()
	m.Lane.Learn(m.Tokens, max(took-m.Rest, took/4))
}

// Progress implements Observer.
func (*Move) Progress(int) {}

// Ended implements Observer: the rank should have read the cache by now.
func (m *Move) Ended(end *ask.End) {
	if m.Fetches != nil && m.Sent.Load() != 0 && end.Completed() {
		m.Fetches.Expect(m.Tokens)
	}
}
