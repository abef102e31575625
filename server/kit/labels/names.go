package labels

import (
	"sync"
	"sync/atomic"
)

// Other is the label of the names that have no label of their own.
const Other = "other"

// Names bounds the values of one label: the first names that are used keep their own, all later ones share Other. Instruments that
// are no observed ones never lose a series, so a name keeps its place for the life of the process. It is safe for concurrent use.
type Names struct {
	most  int64
	known sync.Map // string to nothing
	count atomic.Int64
}

// NewNames returns a Names with room for most names.
func NewNames(most int) *Names { return &Names{most: int64(most)} }

// Of returns the label of a name: itself or Other.
func (n *Names) Of(name string) string {
	if _, ok := n.known.Load(name); ok {
		return name
	}
	if name == Other || n.count.Load() >= n.most {
		return Other
	}
	if n.count.Add(1) > n.most {
		n.count.Add(-1)
		return Other
	}
	if _, had := n.known.LoadOrStore(name, struct{}{}); had {
		n.count.Add(-1)
	}
	return name
}
