package registry

import (
	"errors"
	"fmt"
	"slices"
)

// ErrNoRank is why a drain is refused that names a rank which the replica does not have.
var ErrNoRank = errors.New("the replica has no such rank")

// ranksToDrain returns the ranks of a replica with so many, 0 where that is not known, in the form of Drain.Ranks.
func ranksToDrain(named []int, ranks int) ([]int, error) {
	if len(named) == 0 {
		return nil, nil
	}
	for _, rank := range named {
		if rank < 0 || rank >= maxRanks || ranks > 0 && rank >= ranks {
			return nil, fmt.Errorf("%w: %d of %d", ErrNoRank, rank, ranks)
		}
	}
	return joinRanks([]int{}, named, ranks), nil
}

// joinRanks returns the ranks of both, nil when these are all of the replica's.
func joinRanks(a, b []int, ranks int) []int {
	if a == nil || b == nil {
		return nil
	}
	all := slices.Concat(a, b)
	slices.Sort(all)
	if all = slices.Compact(all); len(all) == ranks {
		return nil
	}
	return all
}

// ranksLeft returns the ranks of a drain without some, none when none is left. The entry is nil when the replica is not there.
func ranksLeft(drained, without []int, e *entry) ([]int, error) {
	if drained == nil {
		if e == nil {
			return nil, fmt.Errorf("%w: the number of its ranks is not known while it is absent", ErrNoRank)
		}
		for rank := range e.ranks() {
			drained = append(drained, rank)
		}
	}
	return slices.DeleteFunc(slices.Clone(drained), func(rank int) bool { return slices.Contains(without, rank) }), nil
}
