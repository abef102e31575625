package speed

import (
	"cmp"
	"slices"
)

// order lists ranks by their rate, the fastest first, and equal ones as they joined. The mu of their kind guards it.
type order []*Rank

// compare orders r, with the Model m, before o when it is below 0.
func compare(r *Rank, m *Model, o *Rank) int {
	return cmp.Or(cmp.Compare(m.Token, o.model.Load().Token), cmp.Compare(r.place, o.place))
}

// find returns where r is, or where it belongs.
func (l order) find(r *Rank) (at int, ok bool) {
	m := r.model.Load()
	if m == nil {
		return 0, false
	}
	at, ok = slices.BinarySearchFunc(l, r, func(o, r *Rank) int { return -compare(r, m, o) })
	return at, ok && l[at] == r
}

func (l *order) insert(r *Rank) {
	at, _ := l.find(r)
	*l = slices.Insert(*l, at, r)
}

func (l *order) remove(r *Rank) {
	if at, ok := l.find(r); ok {
		*l = slices.Delete(*l, at, at+1)
	}
}

// median is the Model of the median rank among those other than r, which are so many; nil when there is none.
func (l order) median(r *Rank) (m *Model, of int) {
	of = len(l)
	own, among := l.find(r)
	if among {
		of--
	}
	if of == 0 {
		return nil, 0
	}
	at := (of - 1) / 2
	if among && own <= at {
		at++
	}
	return l[at].model.Load(), of
}
