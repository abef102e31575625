package kvindex

import (
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Belief is the short-lived assumption that a rank will hold a prompt that was just routed to
// it. Facts are never changed by it.
type Belief struct {
	rank   *rank
	hashes []blockhash.Hash // blocks that the rank did not hold yet
	until  time.Time
	live   bool // guarded by rank.mu
}

// believed are the live beliefs of a rank. The rank's mu guards them.
type believed struct {
	plane  *plane  // the index's
	writer *writer // the rank's
	live   []*Belief
	counts revmap // beliefs per block
	warm   uint64 // as in holdings
}

// Predict makes Match count hashes as held by slot, beyond the blocks that the rank holds by its own account,
// until the time given (zero: for Config.BeliefTTL from now), until End, or until an
// event announces the last one, whichever comes first. It returns nil when there is nothing to
// believe; End accepts that.
func (ix *Index) Predict(slot replica.Slot, hashes []blockhash.Hash, until time.Time) *Belief {
	if until.IsZero() {
		until = time.Now().Add(ix.config.BeliefTTL)
	}
	gpu := ix.tiers[kvblock.TierGPU]
	hashes = hashes[max(ix.run(gpu, kvblock.TierGPU, slot, hashes, 0), ix.guesses.lead(slot, hashes)):]
	if len(hashes) == 0 {
		return nil
	}
	var b *Belief
	ix.locked(slot, func(r *rank) {
		b = &Belief{rank: r, hashes: slices.Clone(hashes), until: until, live: true}
		r.believed.add(b)
	})
	return b
}

// End takes the belief back, once, however often it is called.
func (b *Belief) End() {
	if b == nil {
		return
	}
	b.rank.mu.Lock()
	defer b.rank.mu.Unlock()
	if b.live {
		b.rank.believed.endIf(func(o *Belief) bool { return o == b })
	}
}

// Expire ends state whose time is over: beliefs, and a snapshot's ranks that were not added. Run
// calls it four times a second; where time is simulated, its owner calls it.
func (ix *Index) Expire(now time.Time) {
	ix.parked.expire(now)
	for _, r := range ix.all() {
		if r == nil {
			continue
		}
		r.mu.Lock()
		r.believed.endIf(func(b *Belief) bool { return !b.until.After(now) })
		r.mu.Unlock()
	}
}

// add makes b a live belief.
func (v *believed) add(b *Belief) {
	v.live = append(v.live, b)
	v.counts.room(len(b.hashes))
	v.inRuns(b.hashes, func(h blockhash.Hash) {
		_, fresh := v.counts.add(revID(kvblock.EngineHash(h)), h)
		if fresh && v.plane.add(spread(h), v.writer) == addNew {
			v.plane.held.Add(1)
		}
	})
}

// confirm ends the beliefs that an event has made facts: key is the last block that it announced.
func (v *believed) confirm(key blockhash.Hash) {
	v.endIf(func(b *Belief) bool { return b.hashes[len(b.hashes)-1] == key })
}

func (v *believed) endAll() { v.endIf(func(*Belief) bool { return true }) }

func (v *believed) endIf(over func(*Belief) bool) {
	v.live = slices.DeleteFunc(v.live, func(b *Belief) bool {
		if !over(b) {
			return false
		}
		v.end(b)
		return true
	})
}

// end removes a belief's blocks; others that believe the same keep theirs.
func (v *believed) end(b *Belief) {
	b.live = false
	v.inRuns(b.hashes, func(h blockhash.Hash) {
		if _, last, _ := v.counts.drop(revID(kvblock.EngineHash(h))); last && v.plane.remove(spread(h), v.writer) {
			v.plane.held.Add(-1)
		}
	})
	b.hashes = nil
}

// inRuns calls f for each hash after its entries of the belief tables were touched.
func (v *believed) inRuns(hashes []blockhash.Hash, f func(blockhash.Hash)) {
	for len(hashes) > 0 {
		run := hashes[:min(runKeys, len(hashes))]
		for _, h := range run {
			v.warm += v.counts.touch(revID(kvblock.EngineHash(h))) + v.plane.touch(spread(h))
		}
		for _, h := range run {
			f(h)
		}
		hashes = hashes[len(run):]
	}
}
