package grpcapi

import (
	"sync"
)

const (
	// listIDs is the length of the lists that are reused, 64 KiB: twice a usual prompt.
	listIDs = 16 << 10
	// fewIDs is the length up to which a list of its own costs less memory than a share of those.
	fewIDs = 2 << 10
)

// idList is a list of token ids that one request after the other uses. A new list of 8,192 ids for each decision is memory that
// no cache has: clearing and filling it took a tenth of the decision.
type idList [listIDs]uint32

// idLists has the lists that no request uses.
var idLists = sync.Pool{New: func() any { return new(idList) }}

// newIDs returns a list of n ids with any content.
func newIDs(n int) []uint32 {
	if n <= fewIDs || n > listIDs {
		return make([]uint32, n)
	}
	return idLists.Get().(*idList)[:n]
}
