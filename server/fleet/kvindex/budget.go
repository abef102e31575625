package kvindex

import "sync/atomic"

// budget bounds the reverse entries of all ranks.
type budget struct {
	most int64
	held atomic.Int64
}

func newBudget(config Config) budget { return budget{most: int64(config.MaxBytes) / BlockCost} }

// left is how many entries fit; negative when too many are held.
func (b *budget) left() int64 { return b.most - b.held.Load() }

// over reports whether n more entries of one among so many ranks would break the budget. The last tenth is kept for
// ranks below their fair share, so that a late rank is indexed too.
func (b *budget) over(h *holdings, n, ranks int) bool {
	held := b.held.Load() + int64(n)
	if held <= b.most-b.most/10 {
		return false
	}
	return held > b.most || h.size() > b.most/int64(max(ranks, 1))
}
