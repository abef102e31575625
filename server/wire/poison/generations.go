package poison

import "time"

// generations is a map of bounded size with entries that expire: the young ones replace the old ones when they are many or old.
type generations[V any] struct {
	most       int
	young, old map[uint64]V
	began      time.Time // of young
}

func newGenerations[V any](most int) generations[V] {
	return generations[V]{most: most, young: map[uint64]V{}}
}

// age drops expired entries.
func (g *generations[V]) age(now time.Time) {
	switch passed := now.Sub(g.began); {
	case passed >= 2*life:
		g.old, g.young, g.began = nil, map[uint64]V{}, now
	case passed >= life, len(g.young) >= g.most:
		g.old, g.young, g.began = g.young, map[uint64]V{}, now
	}
}

func (g *generations[V]) get(key uint64, now time.Time) (V, bool) {
	g.age(now)
	if v, ok := g.young[key]; ok {
		return v, true
	}
	v, ok := g.old[key]
	return v, ok
}

func (g *generations[V]) put(key uint64, v V, now time.Time) {
	g.age(now)
	delete(g.old, key)
	g.young[key] = v
}

func (g *generations[V]) drop(key uint64) {
	delete(g.young, key)
	delete(g.old, key)
}

func (g *generations[V]) size(now time.Time) int {
	g.age(now)
	return len(g.young) + len(g.old)
}
