package kvevents

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Status is what is known about one rank's feed. Counters count from the Add of the rank.
type Status struct {
	Slot  replica.Slot
	Label string
	// Endpoint and Replay are the engine's sockets; empty when there is none.
	Endpoint, Replay string
	State            kvblock.FeedState
	// Connected reports whether the event socket is connected now; Recovering whether a replay is running.
	Connected, Recovering bool
	// Next is the number of the batch that is expected next; meaningful when Known.
	Next  uint64
	Known bool
	// Queued batches have arrived and are not applied; QueuedBytes is their memory.
	Queued      int
	QueuedBytes int64
	// Lag is how long the last applied batch waited here. LastEvent is the engine's own time of it,
	// LastApplied ours; zero when none was applied.
	Lag                    time.Duration
	LastEvent, LastApplied time.Time
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
	// Foreign is why the replay socket belongs to another engine than the event socket; empty while nothing shows that. The
	// state is then degraded, and only live batches are followed.
	Foreign string
	// LastError is the last thing that went wrong, and when.
	LastError   string
	LastErrorAt time.Time
}
