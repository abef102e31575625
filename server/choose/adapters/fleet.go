package adapters

import (
	"math"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
)

const (
	// usualLoad is how long in seconds an adapter is thought to load until the first load was seen.
	usualLoad = 0.2
	// leastLoad and mostLoad bound the learned mean, in seconds.
	leastLoad, mostLoad = 0.001, 60
	// memory is the time over which uses of an adapter are counted.
	memory = time.Minute
	// mostKept bounds the record of a rank whose engine does not say how many slots it has.
	mostKept = 256
)

// Fleet is the record of all ranks. The zero value knows nothing. Times are since any fixed moment.
type Fleet struct {
	mu    sync.Mutex
	names map[string]*use // guarded by mu
	ranks []*rank         // guarded by mu: by slot, nil for none
	load  mean            // guarded by mu: of all ranks
	swept time.Duration   // guarded by mu: when unused names were last dropped
}

// use is how often an adapter was asked for lately, by all requests.
type use struct {
	name  string
	count decaying
}

// decaying is a count of which older parts count less.
type decaying struct {
	value float64
	at    time.Duration
}

func (d *decaying) get(now time.Duration) float64 {
	return d.value * math.Exp(-float64(max(0, now-d.at))/float64(memory))
}

func (d *decaying) add(now time.Duration) { d.value, d.at = d.get(now)+1, max(d.at, now) }

// rank is the record of one rank.
type rank struct {
	life    uint64
	slots   int // max_loras; 0: not known
	entries []*entry
	load    mean
	read    *enginestats.Adapters // the last report
}

// entry is an adapter that a rank is believed to have in memory, or that waits there for a slot.
type entry struct {
	of       *use
	count    decaying      // uses on this rank
	used     time.Duration // the last moment at which a request was in flight
	since    time.Duration // when the first of the requests in flight came
	inFlight int           // requests of this router, and of the routers for which it decides
	seen     bool          // the engine's last report has it running
}

func (e *entry) runs() bool { return e.inFlight > 0 || e.seen }

// at returns the record of a slot; it is made if missing. f.mu is held.
func (f *Fleet) at(slot replica.Slot) *rank {
	for int(slot) >= len(f.ranks) {
		f.ranks = append(f.ranks, nil)
	}
	r := f.ranks[slot]
	if r == nil {
		r = &rank{}
		f.ranks[slot] = r
	}
	return r
}

// named returns the uses of an adapter. f.mu is held.
func (f *Fleet) named(adapter string, now time.Duration) *use {
	if u := f.names[adapter]; u != nil {
		return u
	}
	if f.names == nil {
		f.names = map[string]*use{}
	}
	if now-f.swept > memory { // clients make up names, but only names that replicas serve come here
		f.swept = now
		for name, u := range f.names {
			if u.count.get(now) < 0.01 && !f.kept(u) {
				delete(f.names, name)
			}
		}
	}
	u := &use{name: adapter}
	f.names[adapter] = u
	return u
}

// kept reports whether a rank has an adapter. f.mu is held.
func (f *Fleet) kept(u *use) bool {
	for _, r := range f.ranks {
		if r != nil && r.find(u) != nil {
			return true
		}
	}
	return false
}

func (r *rank) find(u *use) *entry {
	for _, e := range r.entries {
		if e.of == u {
			return e
		}
	}
	return nil
}

// touch notes that an adapter is in use, and makes room for it as the engine does.
func (r *rank) touch(u *use, now time.Duration) *entry {
	e := r.find(u)
	if e == nil {
		e = &entry{of: u, used: now}
		r.entries = append(r.entries, e)
	}
	e.used = max(e.used, now)
	r.trim()
	return e
}

// trim drops the adapters that the engine has no slot for, the least recently used first, and none with requests in flight.
func (r *rank) trim() {
	most := r.slots
	if most == 0 {
		most = mostKept
	}
	for len(r.entries) > most {
		i := r.oldest()
		if i < 0 {
			return
		}
		r.entries = append(r.entries[:i], r.entries[i+1:]...)
	}
}

// oldest is the place of the least recently used adapter without a request in flight, -1 for none.
func (r *rank) oldest() int {
	found := -1
	for i, e := range r.entries {
		if !e.runs() && (found < 0 || e.used < r.entries[found].used) {
			found = i
		}
	}
	return found
}

// reset forgets the adapters of the engine: a new process begins.
func (r *rank) reset(life uint64) {
	r.life, r.read = life, nil
	kept := r.entries[:0]
	for _, e := range r.entries {
		if e.seen = false; e.inFlight > 0 { // its end will be reported
			kept = append(kept, e)
		}
	}
	clear(r.entries[len(kept):])
	r.entries = kept
}

// loading is the expected time of a load in seconds. f.mu is held.
func (f *Fleet) loading(r *rank) float64 {
	usual := f.load.or(usualLoad)
	// Ranks with the same adapters and store differ by chance, and small differences would draw all adapters to one of them.
	if own := r.load.value; r.load.count >= enough && (own > 2*usual || own < usual/2) {
		return own
	}
	return usual
}

// mean is the mean time of loads in seconds, of which later ones count more.
type mean struct {
	value float64
	count int
}

// enough is the number of loads from which a rank's own mean counts.
const enough = 8

func (m *mean) or(usual float64) float64 {
	if m.count == 0 {
		return usual
	}
	return m.value
}

// add takes in a load. A time of more than twice the mean counts as twice: something else may have delayed the token.
func (m *mean) add(seconds, expected float64) {
	before := m.or(expected)
	m.value = min(max(before+(min(max(seconds, 0), 2*before)-before)/8, leastLoad), mostLoad)
	m.count++
}

// Loaded notes that an engine has loaded an adapter by a call.
func (f *Fleet) Loaded(slot replica.Slot, adapter string, now time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at(slot).touch(f.named(adapter, now), now)
}

// Unloaded notes that an engine has no adapter of this name any more.
func (f *Fleet) Unloaded(slot replica.Slot, adapter string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u, r := f.names[adapter], f.at(slot)
	for i, e := range r.entries {
		if e.of == u && e.inFlight == 0 {
			r.entries = append(r.entries[:i], r.entries[i+1:]...)
			return
		}
	}
}

// Remove forgets a rank.
func (f *Fleet) Remove(slot replica.Slot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if int(slot) < len(f.ranks) {
		f.ranks[slot] = nil
	}
}
