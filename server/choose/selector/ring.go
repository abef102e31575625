package selector

import (
	"errors"
	"slices"
	"sort"
	"strconv"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/check"
)

// RingConfig has an operator's settings of the consistent-hash ring.
type RingConfig struct {
	// VirtualNodes is the number of points that each rank has on the ring.
	VirtualNodes int `yaml:"virtual_nodes"`
	// Fallbacks is the number of further ranks, clockwise, that are tried when the owner cannot serve.
	Fallbacks int `yaml:"fallbacks"`
	// AffinityWindow is the number of latest requests over which the metric affinity_rate is computed.
	AffinityWindow int `yaml:"affinity_window"`
}

// DefaultRingConfig returns the defaults.
func DefaultRingConfig() RingConfig {
	return RingConfig{VirtualNodes: 100, Fallbacks: 2, AffinityWindow: 128}
}

// Validate reports every bad field at once.
func (c RingConfig) Validate() error {
	return errors.Join(
		check.AtLeast("virtual_nodes", c.VirtualNodes, 1),
		check.AtLeast("fallbacks", c.Fallbacks, 0),
		check.AtLeast("affinity_window", c.AffinityWindow, 1),
	)
}

// ringSeed is the seed of the ring's hash, the same as in Ray Serve's router.
const ringSeed = 0xF9B4CA77

// Ring is an immutable consistent-hash ring of ranks.
type Ring struct {
	config RingConfig
	points []point
}

type point struct {
	hash uint64
	slot replica.Slot
}

// NewRing places each rank of replicas on a ring.
func NewRing(config RingConfig, replicas []*replica.Replica) *Ring {
	r := &Ring{config: config}
	for _, rep := range replicas {
		for i, slot := range rep.Slots {
			name := string(rep.ID)
			if len(rep.Slots) > 1 {
				name += "#" + strconv.Itoa(i)
			}
			for v := range config.VirtualNodes {
				r.points = append(r.points, point{murmur3(name+":"+strconv.Itoa(v), ringSeed), slot})
			}
		}
	}
	slices.SortFunc(r.points, func(a, b point) int {
		switch {
		case a.hash < b.hash:
			return -1
		case a.hash > b.hash:
			return 1
		}
		return int(a.slot) - int(b.slot)
	})
	return r
}

// Walk appends to dst the slots that key belongs to: the owner (the first point strictly
// clockwise of the key) and its distinct successors.
func (r *Ring) Walk(dst []replica.Slot, key string) []replica.Slot {
	if len(r.points) == 0 {
		return dst
	}
	h := murmur3(key, ringSeed)
	start := sort.Search(len(r.points), func(i int) bool { return r.points[i].hash > h })
	for i := range r.points {
		p := r.points[(start+i)%len(r.points)]
		if slices.Contains(dst, p.slot) {
			continue
		}
		if dst = append(dst, p.slot); len(dst) > r.config.Fallbacks {
			break
		}
	}
	return dst
}
