package splits

import (
	"math/bits"

	"github.com/zeebo/xxh3"
)

// place is where a key lies between 0 and 2^64, the same in every router. Round 0 decides between all sides; later rounds move the keys of
// sides that cannot serve.
func place(model, key string, round int) uint64 {
	return xxh3.HashStringSeed(model+"\x00"+key, uint64(round))
}

// pick returns the index of the side of a key: the sides divide the places by their weights, in their order, so that a changed weight moves
// the keys next to its border only. -1 when no side has a weight.
func pick(weights []uint64, at uint64) int {
	var sum uint64
	for _, w := range weights {
		sum += w
	}
	if sum == 0 {
		return -1
	}
	n, _ := bits.Mul64(at, sum) // at * sum / 2^64, below sum
	for i, w := range weights {
		if n < w {
			return i
		}
		n -= w
	}
	return -1
}
