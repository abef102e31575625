package facts

import (
	"encoding/binary"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// kind is a kind of fact.
type kind uint8

const (
	kindDrain kind = iota
	kindRegistration
	kindRate
	kinds
)

var kindNames = [kinds]string{"drain", "registration", "rate"}

func (k kind) String() string { return kindNames[k] }

// entry is a fact.
type entry[V any] struct {
	version version
	value   V
	// gone: it is no longer true, and kept so that older versions do not come back.
	gone bool
	size int // of the value in bytes, where that varies
	// got is when it came. met: its subject was known here at a time since.
	got time.Time
	met bool
}

const (
	// keepStrange is how long a fact about a subject that is not known here waits for it: discovery takes seconds.
	keepStrange = time.Minute
	// maxStrange bounds such facts, and the versions of dropped ones.
	maxStrange = 1024
)

// table has the last version of each fact of one kind.
type table[V any] struct {
	kind  kind
	facts map[string]entry[V]
	// keep is how long facts that are gone are kept after they were made, and alive how long the others are; 0: without limit.
	keep, alive time.Duration
	// most bounds the facts, mostBytes their sizes.
	most, mostBytes int
	bytes           int
	digest          uint64
	// registry knows the subjects of keys; nil: each is known. strange counts the facts about others, and
	// dropped has the versions of facts that waited in vain, so that peers do not bring them again.
	registry Registry
	strange  int
	dropped  map[string]version
}

// isFull reports whether there are too many facts about unknown subjects for another one about key.
func (t *table[V]) isFull(key string) bool {
	_, have := t.facts[key]
	return !have && t.strange >= maxStrange && t.isStrange(key)
}

func (t *table[V]) isStrange(key string) bool {
	return t.registry != nil && !t.registry.Present(replica.ID(key))
}

// meet notes that the subject of a fact is known.
func (t *table[V]) meet(key string, e entry[V]) {
	e.met = true
	t.facts[key] = e
	t.strange--
	delete(t.dropped, key)
}

// forget drops a fact whose subject did not come.
func (t *table[V]) forget(key string, v version) {
	if t.dropped == nil || len(t.dropped) >= maxStrange {
		t.dropped = map[string]version{}
	}
	t.dropped[key] = v
	t.drop(key)
}

func newTable[V any](k kind, keep, alive time.Duration, most, mostBytes int) *table[V] {
	return &table[V]{kind: k, facts: map[string]entry[V]{}, keep: keep, alive: alive, most: most, mostBytes: mostBytes}
}

// put enters a fact unless a later one with its key is known, and reports whether it did.
func (t *table[V]) put(key string, e entry[V], now time.Time) bool {
	old, known := t.facts[key]
	if known && !e.version.after(old.version) || t.over(&e, now) {
		return false
	}
	e.got, e.met = now, e.met || old.met || !t.isStrange(key)
	if v, was := t.dropped[key]; was && !e.met && !e.version.after(v) {
		return false
	}
	t.drop(key)
	if !e.met {
		t.strange++
	}
	t.facts[key] = e
	t.bytes += e.size
	t.digest ^= mark(t.kind, key, e.version)
	for len(t.facts) > t.most || t.bytes > t.mostBytes {
		t.drop(t.oldest())
	}
	_, kept := t.facts[key]
	return kept
}

// over reports whether the time of a fact is over.
func (t *table[V]) over(e *entry[V], now time.Time) bool {
	limit := t.alive
	if e.gone {
		limit = t.keep
	}
	return limit > 0 && e.version.age(now) > limit
}

// expire drops the facts whose time is over, and returns the ones whose subject did not come.
func (t *table[V]) expire(now time.Time) (strangers []string) {
	for key, e := range t.facts {
		switch {
		case t.over(&e, now):
			t.drop(key)
		case e.met:
		case !t.isStrange(key):
			t.meet(key, e)
		case now.Sub(e.got) > keepStrange:
			t.forget(key, e.version)
			strangers = append(strangers, key)
		}
	}
	return strangers
}

func (t *table[V]) drop(key string) {
	if e, known := t.facts[key]; known {
		delete(t.facts, key)
		t.bytes -= e.size
		if !e.met {
			t.strange--
		}
		t.digest ^= mark(t.kind, key, e.version)
	}
}

// oldest is the key of the earliest version. A fact that is dropped so is older than every fact that is kept, so that no peer can
// bring back the fact that it replaced.
func (t *table[V]) oldest() (key string) {
	var first version
	for k, e := range t.facts {
		if key == "" || first.after(e.version) {
			key, first = k, e.version
		}
	}
	return key
}

// mark is the share of one fact in a digest.
func mark(k kind, key string, v version) uint64 {
	b := append(make([]byte, 0, 64), byte(k))
	b = binary.LittleEndian.AppendUint64(b, v.ms)
	b = append(append(append(b, v.router...), 0), key...)
	return xxh3.Hash(b)
}
