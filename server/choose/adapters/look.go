package adapters

import (
	"math"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
)

// Rank has the facts about a rank that a Look needs.
type Rank struct {
	Slot replica.Slot
	// Life is the replica's, Listed how many adapters it lists. Report is its engine's last one; nil: none.
	Life   uint64
	Listed int
	Report *enginestats.Adapters
}

// Look prices one adapter on rank after rank. It holds the fleet's lock until Done.
type Look struct {
	fleet     *Fleet
	of        *use
	now       time.Duration
	residence float64
	scarcity  float64 // how likely a slot that is taken is missed by another adapter
}

// Look begins to price an adapter; residence is how long in seconds a request is computed on average.
func (f *Fleet) Look(adapter string, residence float64, now time.Duration) Look {
	f.mu.Lock()
	return Look{fleet: f, of: f.named(adapter, now), now: now, residence: residence, scarcity: f.scarcity()}
}

// scarcity is how likely a slot that is taken now is missed by another adapter before it is free again: by the share of the fleet's slots that are
// in use, as in a queue before so many servers; twice that kept most answers good in the player. f.mu is held.
func (f *Fleet) scarcity() float64 {
	slots, running := 0, 0
	for _, r := range f.ranks {
		if r == nil || r.slots == 0 {
			continue
		}
		slots += r.slots
		here := 0
		for _, e := range r.entries {
			if e.runs() {
				here++
			}
		}
		running += min(here, r.slots)
	}
	if slots == 0 {
		return 0
	}
	return 2 * math.Pow(float64(running)/float64(slots), math.Sqrt(float64(slots+1)))
}

// Done ends the Look.
func (l *Look) Done() { l.fleet.mu.Unlock() }

// At is the adapter's state on a rank, with its price.
func (l *Look) At(of Rank) decision.Adapting {
	r := l.fleet.at(of.Slot)
	if r.life != of.Life {
		r.reset(of.Life)
	}
	l.read(r, of.Report)
	e := r.find(l.of)
	before, wait := l.before(r, e)
	switch {
	case r.slots > 0 && before >= r.slots:
		return decision.Adapting{Adapter: decision.AdapterFull, AdapterWait: float32(wait), AdapterLoad: float32(l.fleet.loading(r))}
	case e != nil && e.runs():
		return decision.Adapting{Adapter: decision.AdapterRunning}
	case e != nil, r.slots > 0 && of.Listed <= r.slots:
		return decision.Adapting{Adapter: decision.AdapterResident, AdapterLoss: float32(l.residence * l.scarcity)} // an engine loads the adapters that it lists, and has room for all of them
	}
	load := l.fleet.loading(r)
	return decision.Adapting{Adapter: decision.AdapterAbsent, AdapterLoad: float32(load), AdapterLoss: float32(load*l.loss(r) + l.residence*l.scarcity)}
}

// before counts the other adapters that run on the rank, where this one runs only the adapters whose requests came before, and says in how
// many seconds the first of them is likely to have ended: its requests are at moments of their lives that are spread evenly.
func (l *Look) before(r *rank, own *entry) (count int, wait float64) {
	fewest := 0
	for _, e := range r.entries {
		if e == own || !e.runs() || own != nil && own.runs() && e.since > own.since {
			continue
		}
		count++
		if n := max(1, e.inFlight); fewest == 0 || n < fewest {
			fewest = n
		}
	}
	n := float64(min(fewest, 6))
	return count, l.residence * (math.Exp(n) - 1) / max(n, 1) * float64(max(1, 1+count-r.slots))
}

// loss is how likely the adapter that would have to leave the rank is asked for there again before this one is asked for again anywhere.
func (l *Look) loss(r *rank) float64 {
	if r.slots == 0 || len(r.entries) < r.slots {
		return 0
	}
	i := r.oldest()
	if i < 0 {
		return 0
	}
	leaves, comes := r.entries[i].count.get(l.now), l.of.count.get(l.now)+1
	return leaves / (leaves + comes)
}

// read takes in an engine's report, once.
func (l *Look) read(r *rank, report *enginestats.Adapters) {
	if report == nil || report == r.read {
		return
	}
	r.read = report
	if report.Slots > 0 {
		r.slots = report.Slots
	}
	if report.Running != nil {
		for _, e := range r.entries {
			if e.seen && e.inFlight == 0 {
				e.used = max(e.used, l.now)
			}
			e.seen = false
		}
		for _, name := range report.Running[:min(len(report.Running), mostKept)] {
			e := r.touch(l.fleet.named(name, l.now), l.now)
			e.seen = true
		}
	}
	r.trim()
}

// Demand is how often an adapter is asked for, and where it is.
type Demand struct {
	Adapter string
	// Uses is how many requests came in the last minute, older ones counted less.
	Uses float64
	// Resident are the ranks that are believed to have it in GPU memory.
	Resident []replica.Slot
}

// Demands lists the adapters in the record, the most used first.
func (f *Fleet) Demands(now time.Duration) []Demand {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]Demand, 0, len(f.names))
	for _, u := range f.names {
		d := Demand{Adapter: u.name, Uses: u.count.get(now)}
		for slot, r := range f.ranks {
			if r != nil && r.find(u) != nil {
				d.Resident = append(d.Resident, replica.Slot(slot))
			}
		}
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b Demand) int {
		switch {
		case a.Uses > b.Uses:
			return -1
		case a.Uses < b.Uses || a.Adapter > b.Adapter:
			return 1
		}
		return -1
	})
	return list
}

// InFlight counts the requests of an adapter on a rank.
func (f *Fleet) InFlight(slot replica.Slot, adapter string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u := f.names[adapter]; u != nil {
		if e := f.at(slot).find(u); e != nil {
			if e.seen {
				return max(1, e.inFlight)
			}
			return e.inFlight
		}
	}
	return 0
}

// Held is a rank's part of the record.
type Held struct {
	Slot replica.Slot
	// Resident is how many adapters the rank is believed to have in memory, Running how many of them have requests in flight, Slots how many it can
	// have, 0 where that is not known.
	Resident, Running, Slots int
	// Load is how long in seconds a load is expected to take there.
	Load float64
}

// Ranks lists the ranks that have had adapters.
func (f *Fleet) Ranks() []Held {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []Held
	for slot, r := range f.ranks {
		if r == nil || len(r.entries) == 0 && r.slots == 0 {
			continue
		}
		h := Held{Slot: replica.Slot(slot), Resident: len(r.entries), Slots: r.slots, Load: f.loading(r)}
		for _, e := range r.entries {
			if e.runs() {
				h.Running++
			}
		}
		list = append(list, h)
	}
	return list
}
