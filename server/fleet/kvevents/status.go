package kvevents

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/sequence"
)

// ForeignReplay begins the Foreign of a Status.
const ForeignReplay = sequence.ForeignReplay

// Status is the state of one rank's feed.
type Status struct {
	Slot  replica.Slot
	Label string
	State kvblock.FeedState
	Sockets
	Progress
	Counts
	Trouble
}

// Sockets are the engine's; empty when there is none. Connected reports whether the event socket is connected now.
type Sockets struct {
	Endpoint, Replay string
	Connected        bool
}

// Progress is how far a feed has come.
type Progress struct {
	// Next is the number of the batch that is expected next; meaningful when Known.
	Next  uint64
	Known bool
	// Recovering reports whether a replay is running.
	Recovering bool
	// Queued batches have arrived and are not applied; QueuedBytes is their memory.
	Queued      int
	QueuedBytes int64
	// Lag is how long the last applied batch waited here. LastEvent is the engine's own time of it,
	// LastApplied ours; zero when none was applied.
	Lag                    time.Duration
	LastEvent, LastApplied time.Time
}

// Counts count from the Add of the rank.
type Counts struct {
	// Batches were applied, live or replayed; Stored and Removed count their blocks.
	Batches, Replayed, Stored, Removed uint64
	// Gaps were found in the numbering; Replays were asked for; Resets forgot the rank's blocks, of
	// which Restarts were new engine lives.
	Gaps, Replays, Resets, Restarts uint64
	// Connects counts the connections made, Pauses how often reading stopped because the queue was full.
	Connects, Pauses uint64
	// Malformed counts messages without a batch number.
	Malformed uint64
	// DecodeErrors counts batches that could not be read; Unknown fields and tags were skipped, Misfits
	// were events with tokens that do not match their hashes.
	DecodeErrors, Unknown, Misfits uint64
}

// Trouble is a present or past fault.
type Trouble struct {
	// Foreign is why the replay socket belongs to another engine than the event socket; empty while nothing shows that. The
	// state is then degraded, and only live batches are followed.
	Foreign string
	// LastError is the last thing that went wrong, and when.
	LastError   string
	LastErrorAt time.Time
}
