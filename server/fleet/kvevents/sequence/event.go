package sequence

import "time"

// Kind is the kind of an Event.
type Kind uint8

const (
	// Connected: the event socket has a new connection, Epoch, with the replay socket and the engine's name in Link.
	Connected Kind = iota + 1
	// Disconnected: the connection Epoch has ended with Err.
	Disconnected
	// Live: Batch came on the connection Epoch. It must not be passed while State.Waiting; after the effect Keep it is
	// passed again when State.Waiting has ended.
	Live
	// Replayed: Batch came as an answer to the request Job.
	Replayed
	// ReplayEnded: the request Job has ended. Err is nil when its end marker came.
	ReplayEnded
	// Tick comes from time to time. Queued reports whether live batches wait to be passed.
	Tick
	// Restarted: another part of the router has seen that the engine process is a new one, which began at At.
	Restarted
	// Malformed: a message came that is no batch.
	Malformed
	// Continued: the sink holds the blocks of Position, which another feed has given.
	Continued
	// Shown ends the handling of several events: the feed's state is reported.
	Shown
)

// Event is one thing that has happened.
type Event struct {
	Kind Kind
	// Now is the present time, At the time of the event itself.
	Now, At  time.Time
	Epoch    uint64
	Job      uint64
	Batch    Batch
	Link     Link
	Err      error
	Queued   bool
	Ending   bool // ReplayEnded: the end of the connection waits to be passed
	Position *Position
}

// Publisher names the process that publishes, where the engine does. Zero is no name.
type Publisher [16]byte

// Link is where a new connection leads.
type Link struct {
	Replay   string // the replay socket; empty: there is none
	Instance string // the name of the engine process; empty: not known
}

// Mark identifies a batch.
type Mark struct {
	Seq   uint64
	Print uint64 // of its payload
	By    Publisher
}

// differsFrom reports whether the batch is of another process. It is not where either is unknown.
func (m *Mark) differsFrom(by Publisher) bool {
	return m.By != Publisher{} && by != Publisher{} && m.By != by
}

// Batch is a batch without its blocks.
type Batch struct {
	Mark
	Content
}

// Content is the part of a batch's content on which the state depends.
type Content struct {
	Err     error // it could not be decoded
	Stores  bool  // it stores blocks
	Lower   bool  // it has events of tiers below the GPU
	Emptied bool  // the GPU's cache was emptied, before any event of a lower tier
	Misfits int   // stores of the prefix chain whose tokens do not match their hashes
}
