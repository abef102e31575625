package kvindex

import (
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// parkFor is how long a loaded rank waits for its replica: replicas are found within minutes of a start.
const parkFor = 15 * time.Minute

// parked are a snapshot's ranks that wait for AddRank, or for Claim where they have their feed's position. A rank lies here or in
// the roster, never in both; its entries count against the budget.
type parked struct {
	budget *budget

	mu    sync.Mutex
	ranks map[replica.Rank]waiting // guarded by mu
}

// waiting is one of them.
type waiting struct {
	*rank
	until time.Time
}

// park keeps a loaded rank until its replica is found. A position makes it worth more than one without.
func (p *parked) park(from *rank) Loaded {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ranks == nil {
		p.ranks = map[replica.Rank]waiting{}
	}
	if old, ok := p.ranks[from.info.Rank]; ok {
		if from.position == nil {
			p.budget.held.Add(-from.size())
			return Loaded{Skipped: 1}
		}
		p.budget.held.Add(-old.size())
	}
	p.ranks[from.info.Rank] = waiting{from, time.Now().Add(parkFor)}
	return Loaded{Ranks: 1, Parked: 1, Blocks: from.size()}
}

// take returns the rank of this name, which waits no longer, if it has a position or has none, as asked; else nil.
func (p *parked) take(name replica.Rank, position bool) *rank {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.ranks[name]
	if !ok || (w.position != nil) != position {
		return nil
	}
	delete(p.ranks, name)
	return w.rank
}

// all returns the ranks that wait.
func (p *parked) all() []*rank {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*rank, 0, len(p.ranks))
	for _, w := range p.ranks {
		list = append(list, w.rank)
	}
	return list
}

// size counts the ranks and the bytes of their blocks.
func (p *parked) size() (ranks int, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.ranks {
		for _, part := range w.parts {
			bytes += part.rev.bytes()
		}
	}
	return len(p.ranks), bytes
}

// expire drops the ranks whose time is over.
func (p *parked) expire(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, w := range p.ranks {
		if !w.until.After(now) {
			p.budget.held.Add(-w.size())
			delete(p.ranks, name)
		}
	}
}
