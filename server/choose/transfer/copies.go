package transfer

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Copy is a copy of a prompt's leading blocks from the cache of one rank to another's. Its exported fields do not change.
type Copy struct {
	From, To replica.Slot
	// Last is the key of the last block, Blocks their number and BlockSize the tokens of each.
	Last              blockhash.Hash
	Blocks, BlockSize int
	// Begun is when the copy began, Due when it is predicted to end, in nanoseconds on the chooser's scale.
	Begun, Due int64
	// moves is set when the source has passed on the cache.
	moves atomic.Bool
	ended atomic.Int64
}

// Moved notes that the source has passed on the cache.
func (c *Copy) Moved() { c.moves.Store(true) }

// Moves reports whether the source has passed on the cache.
func (c *Copy) Moves() bool { return c.moves.Load() }

// Tokens is the length of the prefix.
func (c *Copy) Tokens() int { return c.Blocks * c.BlockSize }

// Begins reports whether a prompt with these block keys begins with the prefix.
func (c *Copy) Begins(keys []blockhash.Hash) bool {
	return len(keys) >= c.Blocks && keys[c.Blocks-1] == c.Last
}

// Ended is when the copy ended, on the chooser's scale; 0 while it is under way.
func (c *Copy) Ended() int64 { return c.ended.Load() }

// Remaining is the predicted time in seconds until the copy ends. It is false for a copy that takes far longer than predicted: nothing can
// be expected of it.
func (c *Copy) Remaining(now int64) (seconds float64, expected bool) {
	if left := c.Due - now; left > 0 {
		return time.Duration(left).Seconds(), true
	}
	return 0, now-c.Due < c.Due-c.Begun+int64(copySlack)
}

const (
	// mostCopies bounds the copies that are under way.
	mostCopies = 256
	// copySlack is how much later than twice the predicted time a copy is still expected.
	copySlack = 500 * time.Millisecond
	// copyRest is how long a rank takes part in no copy after one that failed because of it.
	copyRest = 30 * time.Second
)

// Copies are the copies under way, at most one to each rank. The zero value is ready; it is safe for concurrent use.
type Copies struct {
	list    atomic.Pointer[[]*Copy]                // nil: none; the slice is never changed
	resting atomic.Pointer[map[replica.Slot]int64] // nil: none; the map is never changed

	mu   sync.Mutex // serialises changes
	ends atomic.Uint64
}

// Ends counts the copies that have ended.
func (c *Copies) Ends() uint64 { return c.ends.Load() }

// All returns the copies under way. The caller must not change the slice.
func (c *Copies) All() []*Copy {
	if list := c.list.Load(); list != nil {
		return *list
	}
	return nil
}

// To returns the copy to a rank that is under way; nil for none.
func (c *Copies) To(slot replica.Slot) *Copy {
	for _, one := range c.All() {
		if one.To == slot {
			return one
		}
	}
	return nil
}

// Begin adds a copy. It reports false when another one to the same rank is under way, or too many are.
func (c *Copies) Begin(one *Copy) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.beginLocked(one)
}

// BeginSince is Begin for a copy that was found missing when so many copies had ended. When more have, its target may have got the prefix since, and it
// does not begin.
func (c *Copies) BeginSince(one *Copy, ends uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ends.Load() == ends && c.beginLocked(one)
}

func (c *Copies) beginLocked(one *Copy) bool {
	list := c.All()
	if len(list) >= mostCopies || c.To(one.To) != nil {
		return false
	}
	list = append(slices.Clip(list), one)
	c.list.Store(&list)
	return true
}

// End removes a copy, at now. The index must know the result by then. A second time does nothing.
func (c *Copies) End(one *Copy, now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one.ended.CompareAndSwap(0, now) {
		c.ends.Add(1)
	}
	list := slices.DeleteFunc(slices.Clone(c.All()), func(o *Copy) bool { return o == one })
	if len(list) == 0 {
		c.list.Store(nil)
		return
	}
	c.list.Store(&list)
}

// Rest keeps a rank out of copies for a while, because one has failed there.
func (c *Copies) Rest(slot replica.Slot, now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	made := map[replica.Slot]int64{slot: now + int64(copyRest)}
	if old := c.resting.Load(); old != nil {
		for o, until := range *old {
			if o != slot && until > now {
				made[o] = until
			}
		}
	}
	c.resting.Store(&made)
}

// Rests reports whether a rank is kept out of copies.
func (c *Copies) Rests(slot replica.Slot, now int64) bool {
	m := c.resting.Load()
	return m != nil && (*m)[slot] > now
}

// AnyRests reports whether any rank may be kept out of copies.
func (c *Copies) AnyRests() bool { return c.resting.Load() != nil }
