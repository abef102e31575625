package sequence

import (
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// Action is the kind of an Effect.
type Action uint8

const (
	// Apply passes the event's batch to the sink.
	Apply Action = iota + 1
	// Unreadable notes that the event's batch could not be decoded.
	Unreadable
	// Keep leaves the live batch where it is until the replay has ended.
	Keep
	// Reset makes the sink forget the rank, for Reason.
	Reset
	// Doubt makes the sink keep the rank's blocks as a guess.
	Doubt
	// Ask demands the replay of Request.
	Ask
	// ReplayFailed notes a failed attempt at the replay of Request.
	ReplayFailed
	// Gap notes a gap in the numbering.
	Gap
	// Restart notes a new engine process.
	Restart
	// Problem notes Text, the last thing that went wrong.
	Problem
	// Foreign notes that the replay socket of Request belongs to another engine; Text is why.
	Foreign
	// Cleared notes that the replay socket of Request belongs to the right engine now.
	Cleared
	// Show reports the feed's new State. Was is the one before; the first time it is the same.
	Show
)

// Effect is one thing that the caller has to do. Effects are executed in their order.
type Effect struct {
	Do      Action
	Reason  Reason
	State   kvblock.FeedState
	Was     kvblock.FeedState
	Text    string
	Request Request
}

// Request is one question to a replay socket: for all batches from a number on, or for the first one of them.
type Request struct {
	At        string
	Job, From uint64
	One       bool
	Why       Why
	First     bool          // the first request of a replay
	After     time.Duration // the pause before it
}

// Reason is the reason of a Reset.
type Reason uint8

// The reasons.
const (
	LostInGap Reason = iota
	EngineRestarted
	BatchUnreadable
	Unreachable
	Rebuilt
	NoFeed
	FromForeign
)

// Reasons lists the reasons.
func Reasons() []Reason {
	return []Reason{LostInGap, EngineRestarted, BatchUnreadable, Unreachable, Rebuilt, NoFeed, FromForeign}
}

// String is the form that metrics use.
func (r Reason) String() string {
	return [...]string{"gap", "restart", "unreadable", "unreachable", "rebuild", "no feed", "foreign"}[r]
}

// effects collects the demands of a step.
type effects []Effect

func (e *effects) add(do Action) { *e = append(*e, Effect{Do: do}) }

func (e *effects) problem(format string, args ...any) {
	*e = append(*e, Effect{Do: Problem, Text: fmt.Sprintf(format, args...)})
}
