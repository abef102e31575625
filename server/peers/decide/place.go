package decide

import (
	"cmp"
	"slices"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
)

// ID names a router process: 8 hexadecimal digits, random for each start.
type ID = string

// member is a router that could decide.
type member struct {
	id      ID
	ability peerv1.Ability
}

// rank orders abilities: the first is the fittest.
func rank(a peerv1.Ability) int {
	switch a {
	case peerv1.Ability_ABILITY_ABLE:
		return 0
	case peerv1.Ability_ABILITY_LEAVING:
		return 2
	default:
		return 1
	}
}

// place is the decider of a pool: of the fittest members the member with the highest rendezvous hash, so that a member that joins or
// leaves moves its own pools only. Routers that see the same members agree.
func place(pool string, members []member) ID {
	return slices.MaxFunc(members, func(a, b member) int {
		return cmp.Or(rank(b.ability)-rank(a.ability), cmp.Compare(weight(pool, a.id), weight(pool, b.id)), cmp.Compare(a.id, b.id))
	}).id
}

// weight is a 64-bit FNV-1a hash of both names, mixed by the finalizer of MurmurHash3 because FNV's high bits hardly depend on
// the last bytes.
func weight(pool string, id ID) uint64 {
	h := uint64(14695981039346656037)
	for _, s := range [...]string{pool, id} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
		h = (h ^ 0xff) * 1099511628211
	}
	return mix(h)
}

// mix spreads the bits of h.
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
