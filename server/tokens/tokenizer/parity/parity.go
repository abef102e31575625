// Package parity compares a model's tokenization here with its engines' figures: the prompt tokens that they count,
// and the first blocks that they store.
//
// A Guard watches one model. It is unproven at first, proven after enough equal lengths, and suspect from the first
// mismatch until many equal lengths have cleared it. A Guard is safe for concurrent use; it logs and counts nothing,
// which is left to the caller that gets a Mismatch.
package parity

import (
	"slices"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

const (
	// provenAfter consecutive equal prompt lengths make a model's tokenization proven.
	provenAfter = 8
	// clearedAfter consecutive equal lengths clear a suspicion.
	clearedAfter = 64
	// missesAfter prompts with a first block that never showed up among a rank's events, while other
	// roots did, make it suspect.
	missesAfter = 8
	// expectFor is how long a rank may take to report a prompt's first block.
	expectFor = 30 * time.Second
	// expectations bounds the prompts expected on one rank: a sample is enough.
	expectations = 16
	// headTokens of an expected prompt are kept, more than any block has.
	headTokens = 2048
)

// Status is how well a model's tokenization here agrees with the engines.
type Status struct {
	Model string `json:"model"`
	// State is unproven, proven or suspect.
	State string `json:"state"`
	// Equal and Unequal count prompts with a length that was compared with the engine's.
	Equal   int64 `json:"equal"`
	Unequal int64 `json:"unequal"`
	// BlocksEqual and BlocksMissed count first blocks expected among a rank's events.
	BlocksEqual  int64 `json:"blocks_equal"`
	BlocksMissed int64 `json:"blocks_missed"`
	// Overpredicted counts prompts that found far less in the cache than was predicted.
	Overpredicted int64 `json:"overpredicted"`
	// Position is the first token that differed at the last mismatch, -1 when unknown.
	Position int `json:"position"`
	// Detail describes the last mismatch without showing the prompt.
	Detail string `json:"detail,omitempty"`
	// Since is when the state was entered.
	Since time.Time `json:"since"`
}

// Mismatch is a difference between ids here and the engine's. Its zero value is none.
type Mismatch struct {
	// Detail describes it without showing the prompt; empty when there is none.
	Detail string
	// Position is the first token that differs.
	Position int
	// First is set when it made the model suspect.
	First bool
}

// Guard watches one model.
type Guard struct {
	mu      sync.Mutex
	status  Status                          // guarded by mu
	run     int                             // guarded by mu; consecutive equal lengths
	misses  int                             // guarded by mu; consecutive missed blocks
	expects map[replica.Slot][]*expectation // guarded by mu
}

// expectation is a prompt that a rank had nothing of: its first block must be stored.
type expectation struct {
	head   []uint32
	ns     string
	until  time.Time
	closer int  // most leading tokens that a stored root block shared with it
	others bool // other root blocks were stored since
}

// New returns the guard of a model about which nothing is known.
func New(model string) *Guard {
	g := &Guard{status: Status{Model: model}}
	g.Clear()
	return g
}

// Clear forgets the evidence about the model, after its cause was repaired.
func (g *Guard) Clear() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.status = Status{Model: g.status.Model, State: "unproven", Position: -1, Since: time.Now()}
	g.run, g.misses, g.expects = 0, 0, nil
}

// Status returns the guard's view.
func (g *Guard) Status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.status
}

// IsSuspect reports whether the last mismatch has not been cleared.
func (g *Guard) IsSuspect() bool { return g.Status().State == "suspect" }

// IsProven reports whether enough lengths were equal.
func (g *Guard) IsProven() bool { return g.Status().State == "proven" }

// Length compares the length of a prompt encoded here with the prompt tokens that the engine counted.
func (g *Guard) Length(encoded, counted int) Mismatch {
	g.mu.Lock()
	defer g.mu.Unlock()
	if counted != encoded {
		g.status.Unequal++
		return g.mismatch("the engine counted another number of prompt tokens", min(counted, encoded))
	}
	g.status.Equal++
	g.run++
	if g.run == provenAfter && g.status.State == "unproven" || g.run == clearedAfter && g.status.State == "suspect" {
		g.enter("proven")
	}
	return Mismatch{}
}

// Overpredicted notes a prompt that found far less in the cache than was predicted.
func (g *Guard) Overpredicted() {
	g.mu.Lock()
	g.status.Overpredicted++
	g.mu.Unlock()
}

// mismatch records one. Callers hold mu.
func (g *Guard) mismatch(detail string, position int) Mismatch {
	g.status.Detail, g.status.Position, g.run = detail, position, 0
	first := g.status.State != "suspect"
	if first {
		g.enter("suspect")
	}
	return Mismatch{Detail: detail, Position: position, First: first}
}

// enter changes the state. Callers hold mu.
func (g *Guard) enter(state string) { g.status.State, g.status.Since = state, time.Now() }

// Expect notes that a prompt of these ids went to a rank that holds nothing of it: its first block must show up
// among the rank's events.
func (g *Guard) Expect(slot replica.Slot, ids []uint32, adapter string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := g.expects[slot]
	if len(list) >= expectations {
		return
	}
	if g.expects == nil {
		g.expects = map[replica.Slot][]*expectation{}
	}
	head := slices.Clone(ids[:min(len(ids), headTokens)])
	g.expects[slot] = append(list, &expectation{head: head, ns: adapter, until: time.Now().Add(expectFor), closer: -1})
}

// Withdraw takes back a prompt that Expect noted. It does nothing if the prompt is not expected.
func (g *Guard) Withdraw(slot replica.Slot, ids []uint32, adapter string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	list, head := g.expects[slot], ids[:min(len(ids), headTokens)]
	if i := slices.IndexFunc(list, func(e *expectation) bool { return e.ns == adapter && slices.Equal(e.head, head) }); i >= 0 {
		g.expects[slot] = slices.Delete(list, i, i+1)
	}
}

// Expire ends the time in which first blocks are expected.
func (g *Guard) Expire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, list := range g.expects {
		for _, e := range list {
			e.until = time.Now().Add(-time.Second)
		}
	}
}

// Stored compares a root block that a rank stored with the prompts expected there. It is cheap when none is.
func (g *Guard) Stored(slot replica.Slot, ev *kvblock.Stored) Mismatch {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := g.expects[slot]
	if len(list) == 0 {
		return Mismatch{}
	}
	block := ev.Tokens[:ev.BlockSize]
	now, matched, position := time.Now(), false, -1
	kept := list[:0]
	for _, e := range list {
		same := CommonPrefix(e.head, block)
		switch {
		case e.ns != ev.Adapter:
		case same == len(block):
			matched = true
			g.status.BlocksEqual++
			g.misses = 0
			continue
		case len(e.head) < len(block):
			continue // shorter than a block: it will not be stored
		default:
			e.others = true
			e.closer = max(e.closer, same)
		}
		if !now.After(e.until) {
			kept = append(kept, e)
		} else if e.others {
			g.status.BlocksMissed++
			g.misses++
			position = e.closer
		}
	}
	g.expects[slot] = kept
	if matched || g.misses < missesAfter || position < 0 {
		return Mismatch{}
	}
	g.misses = 0
	return g.mismatch("prompts sent to a rank never appeared among its blocks", position)
}

// CommonPrefix counts the leading ids that a and b share.
func CommonPrefix(a, b []uint32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
