package labels

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Other is the label of the names that have no label of their own.
const Other = "other"

// Names bounds the values of one label: the first names that are used keep their own, all later ones share Other. Instruments that
// are not observed never lose a series, so a name keeps its place for the life of the process. It is safe for concurrent use, and
// Of does not allocate for a name that it has seen.
type Names struct {
	most  int
	known atomic.Pointer[map[string]struct{}] // replaced, never changed
	mu    sync.Mutex                          // serialises writers
}

// NewNames returns a Names with room for most names.
func NewNames(most int) *Names {
	n := &Names{most: most}
	n.known.Store(&map[string]struct{}{})
	return n
}

// Of returns the label of a name: itself or Other.
func (n *Names) Of(name string) string {
	known := *n.known.Load()
	if _, ok := known[name]; ok {
		return name
	}
	if name == Other || len(known) >= n.most {
		return Other
	}
	return n.add(name)
}

// add gives a name a label while there is room.
func (n *Names) add(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	known := *n.known.Load()
	if _, ok := known[name]; !ok {
		if len(known) >= n.most {
			return Other
		}
		next := maps.Clone(known)
		next[name] = struct{}{}
		n.known.Store(&next)
	}
	return name
}
