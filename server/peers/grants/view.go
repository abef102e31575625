package grants

import (
	"cmp"
	"slices"

	"github.com/zeebo/xxh3"
)

// Fitness orders the routers that may own accounts.
type Fitness uint8

// The fitnesses, the best one first.
const (
	Able Fitness = iota
	Unable
	Leaving
)

// Member is a router that shares the limits.
type Member struct {
	ID      string
	Fitness Fitness
}

// View is which routers share the limits, as one of them sees it. It never changes.
type View struct {
	self    string
	members []Member // sorted by id, with self
	// seen counts the routers that were seen lately, also the routers that are not reached. missed are not reached for a while.
	seen, missed int
}

// NewView returns the view of the router self. members are the routers that it reaches, itself among them, seen
// counts the routers that were seen lately, missed the routers among them that are not reached for a while.
func NewView(self string, members []Member, seen, missed int) *View {
	v := &View{self: self, members: slices.Clone(members), seen: max(seen, len(members)), missed: missed}
	slices.SortFunc(v.members, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	return v
}

// Owner is the router that owns a tenant's account: of the fittest, the member with the highest hash.
func (v *View) Owner(tenant string) string {
	best, at := Member{}, uint64(0)
	for i, m := range v.members {
		h := xxh3.HashStringSeed(tenant, xxh3.HashString(m.ID))
		if i == 0 || m.Fitness < best.Fitness || m.Fitness == best.Fitness && h > at {
			best, at = m, h
		}
	}
	return best.ID
}

// Self is the router whose view it is.
func (v *View) Self() string { return v.self }

// Reaches reports whether a router shares the limits.
func (v *View) Reaches(id string) bool {
	_, found := slices.BinarySearchFunc(v.members, id, func(m Member, id string) int { return cmp.Compare(m.ID, id) })
	return found
}

// Members counts the routers that share the limits, Seen the routers that were seen lately.
func (v *View) Members() int { return len(v.members) }

// Seen counts the routers that were seen lately.
func (v *View) Seen() int { return v.seen }

// Share is the part of the limits that the members have together: of rates, which are divided only when others are missed for a while.
func (v *View) Share() float64 {
	return float64(len(v.members)) / float64(len(v.members)+v.missed)
}

// ShareNow is the part of the limits of requests and tokens in flight, which is divided at once.
func (v *View) ShareNow() float64 { return float64(len(v.members)) / float64(v.seen) }

// Equal reports whether both views say the same.
func (v *View) Equal(o *View) bool {
	return v != nil && o != nil && v.seen == o.seen && v.missed == o.missed && slices.Equal(v.members, o.members)
}
