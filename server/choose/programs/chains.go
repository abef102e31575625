package programs

import (
	"sync"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

const (
	// markEach is the distance in blocks of the places at which a prompt is looked for. A shorter prompt names no program.
	markEach = 64
	// maxChains bounds each of the two generations of prompts that are remembered.
	maxChains = 1 << 15
	// maxAlike bounds the prompts with one last mark: prompts with long common instructions and little behind them.
	maxAlike = 8
	mixed    = 0x9e3779b97f4a7c15
)

// Chains finds programs by their prompts, for callers that name no session: a prompt that continues the whole of an earlier one is the
// next call of its program, and a second one that does is a fork, a child. Make one with NewChains. It is safe for concurrent use.
type Chains struct {
	mu sync.Mutex
	// young and old are the last prompts of programs by their last mark and their scope. The older half is forgotten when there are many.
	young, old map[uint64]*chain // guarded by mu
	count      int               // in young; guarded by mu
}

// chain is the last prompt of a program.
type chain struct {
	name   Name
	tail   blockhash.Hash // of its last block
	blocks int
	tokens int
	// continued is set when a call has continued it.
	continued bool
	next      *chain // another one with the same mark
}

// Found is the program of a prompt; a Name of 0 is none.
type Found struct {
	Name, Parent Name
}

// NewChains returns an empty one.
func NewChains() *Chains { return &Chains{young: map[uint64]*chain{}} }

// Find returns the program of a prompt of so many tokens, with the hashes of its blocks, and remembers the prompt as the program's last
// one. scope keeps the prompts of tenants and models apart. retry says that the same prompt came before. The same prompt from another
// call is no program's: a repeated prompt does not grow.
func (c *Chains) Find(scope uint64, hashes []blockhash.Hash, tokens int, retry bool) Found {
	marks := len(hashes) / markEach
	if marks == 0 {
		return Found{}
	}
	last := hashes[len(hashes)-1]
	c.mu.Lock()
	defer c.mu.Unlock()
	f := Found{Name: named(scope, last)}
	switch before := c.continues(scope, hashes, marks); {
	case before == nil:
	case before.blocks == len(hashes) && tokens <= before.tokens:
		if retry {
			return Found{Name: before.name}
		}
		return Found{}
	case before.continued:
		f.Parent = before.name
	default:
		before.continued = true
		f.Name = before.name
	}
	c.remember(mark(scope, hashes[marks*markEach-1]), &chain{name: f.Name, tail: last, blocks: len(hashes), tokens: tokens})
	return f
}

// continues is the longest remembered prompt that hashes begin with; nil for none. mu is held.
func (c *Chains) continues(scope uint64, hashes []blockhash.Hash, marks int) *chain {
	for k := marks; k > 0; k-- {
		key := mark(scope, hashes[k*markEach-1])
		var longest *chain
		for _, m := range []map[uint64]*chain{c.young, c.old} {
			for one := m[key]; one != nil; one = one.next {
				if one.blocks <= len(hashes) && one.tail == hashes[one.blocks-1] && (longest == nil || one.blocks > longest.blocks) {
					longest = one
				}
			}
		}
		if longest != nil {
			return longest
		}
	}
	return nil
}

// remember keeps a program's last prompt. mu is held.
func (c *Chains) remember(key uint64, one *chain) {
	if c.count >= maxChains {
		c.old, c.young, c.count = c.young, map[uint64]*chain{}, 0
	}
	one.next = c.young[key]
	c.young[key] = one
	c.count++
	for n := 1; one.next != nil; n, one = n+1, one.next {
		if n == maxAlike {
			one.next = nil
			return
		}
	}
}

func mark(scope uint64, h blockhash.Hash) uint64 { return (uint64(h) ^ scope) * mixed }

// named is the name of the program that begins with a prompt.
func named(scope uint64, last blockhash.Hash) Name { return Name(max(1, mark(scope, last)*mixed)) }
