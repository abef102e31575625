package transfer

import (
	"slices"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

const (
	// leastFollowed is the least number of tokens of a prompt that is followed: less is computed about as fast as it is copied.
	leastFollowed = 1024
	// leastFork is how many calls that begin with the prompt of another call are a fork: as many as it takes for a copy while they wait.
	leastFork = 4
	// forkWindow is how long after the end of a call the first call of its fork arrives at the latest, forkBurst how soon after that one the others do.
	// Calls that come one by one need no copy that is there before them. forkLinger is how much later they are counted: they may have waited in
	// the hold queue.
	forkWindow, forkBurst, forkLinger = 2 * time.Second, time.Second, 10 * time.Second
	// judgeEach is the time between two looks at the calls that have ended.
	judgeEach = 100 * time.Millisecond
	// mostFollowed bounds the calls that are followed, mostKinds the kinds of calls that are remembered.
	mostFollowed, mostKinds = 512, 512
	// kindMemory is the number of calls after which the record of a kind has faded to about a third, priorCalls the calls without a fork that a
	// new kind is taken to have had. The record of an application counts from leastCalls on, before that its tenant's.
	kindMemory, priorCalls, leastCalls = 32, 2, 4
	// appTokens is the length of a prompt's beginning that names its application: the instructions of its agents.
	appTokens = 256
)

// Expected is how a call is expected to be forked: by Share of the calls of its kind, with Children calls each.
type Expected struct{ Share, Children float64 }

// Likely reports whether a copy ahead of the fork is worth a thought.
func (e Expected) Likely() bool { return e.Share*e.Children >= 1 }

// place is where a call stands among the calls that begin with one prompt.
type place uint8

const (
	fresh   place = iota // it continues no other call
	next                 // it is the first one that continues another call
	sibling              // one of several that continue another call
)

// kind has the calls that are alike.
type kind struct {
	tenant string
	app    blockhash.Hash // zero: all of the tenant
	place  place
}

// record counts the calls of a kind, and their forks. Old ones fade.
type record struct {
	calls, forks, children float64
	used                   int64
}

func (r *record) add(children int, now int64) {
	const keep = 1 - 1.0/kindMemory
	r.calls, r.forks, r.children, r.used = r.calls*keep+1, r.forks*keep, r.children*keep, now
	if children >= leastFork {
		r.forks, r.children = r.forks+1, r.children+float64(children)
	}
}

func (r *record) expected() Expected {
	if r.forks == 0 {
		return Expected{}
	}
	return Expected{Share: r.forks / (r.calls + priorCalls), Children: r.children / r.forks}
}

// Forks learns how often a call is followed by a fork, several calls that begin with its whole prompt, and by how many calls: by tenant, by the beginning
// of the prompt, and by whether the call itself continues another one. The zero value is ready; it is safe for concurrent use.
type Forks struct {
	mu      sync.Mutex
	calls   []*Call          // that are followed; guarded by mu
	records map[kind]*record // guarded by mu
	judged  int64            // when it was judged last; guarded by mu
}

// Call is a call that is followed.
type Call struct {
	// Expected is how it was expected to be forked when it came.
	Expected Expected

	of        *Forks
	tenant    string
	app       blockhash.Hash
	place     place
	last      blockhash.Hash // of its prompt's last whole block
	blocks    int
	blockSize int
	begun     int64 // its first token; 0: none yet; guarded by of.mu
	ended     int64 // 0: not yet; guarded by of.mu
	children  int   // the first call that begins with its prompt after that, and others soon after it; guarded by of.mu
	first     int64 // when that one arrived; guarded by of.mu
}

// Arrival is a call that has arrived at a moment, in nanoseconds. Keys are its prompt's, of blocks of BlockSize tokens.
type Arrival struct {
	Tenant    string
	Keys      []blockhash.Hash
	BlockSize int
	At        int64
}

// Follow counts a call that arrived as one that continues others, and follows it at now. It returns nil for a call that is not followed: its prompt is too
// short, or too many calls are followed.
func (f *Forks) Follow(a *Arrival, now int64) *Call {
	if a.BlockSize <= 0 || len(a.Keys)*a.BlockSize < leastFollowed {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.judge(now)
	c := &Call{
		of: f, tenant: a.Tenant, app: a.Keys[min(len(a.Keys), max(1, appTokens/a.BlockSize))-1], last: a.Keys[len(a.Keys)-1], blocks: len(a.Keys), blockSize: a.BlockSize,
	}
	c.place = f.continues(a, now)
	if len(f.calls) >= mostFollowed {
		return nil
	}
	c.Expected = f.expected(c)
	f.calls = append(f.calls, c)
	return c
}

// continues counts an arrival at the call with the longest prompt that it begins with, among the calls whose rank had the prompt by then; mu is held.
func (f *Forks) continues(a *Arrival, now int64) place {
	var of *Call
	at := fresh
	for _, c := range f.calls {
		if c.blockSize != a.BlockSize || c.blocks > len(a.Keys) || a.Keys[c.blocks-1] != c.last || c.tenant != a.Tenant {
			continue
		}
		at = sibling // at least of calls at the same time
		if c.begun != 0 && a.At >= c.begun && (c.ended == 0 || a.At <= c.ended+int64(forkWindow)) && (of == nil || c.blocks > of.blocks) {
			of = c
		}
	}
	if of == nil {
		return at
	}
	if of.children == 0 {
		of.children, of.first = 1, a.At
		return next
	}
	if a.At-of.first <= int64(forkBurst) {
		of.children++
		f.grow(of, now)
	}
	return sibling
}

// grow adds a call to the records when it turns out to be forked, and then each of its further calls; mu is held.
func (f *Forks) grow(of *Call, now int64) {
	for _, r := range f.recordsOf(of, now) {
		switch {
		case of.children == leastFork:
			r.add(leastFork, now)
		case of.children > leastFork:
			r.children++
		}
	}
}

// judge adds the calls that were not forked in time to the records; mu is held.
func (f *Forks) judge(now int64) {
	if now < f.judged+int64(judgeEach) {
		return
	}
	f.judged = now
	f.calls = slices.DeleteFunc(f.calls, func(c *Call) bool {
		if c.ended == 0 || now < c.ended+int64(forkWindow+forkBurst+forkLinger) {
			return false
		}
		if c.children < leastFork {
			for _, r := range f.recordsOf(c, now) {
				r.add(0, now)
			}
		}
		return true
	})
}

// recordsOf are the records of the call's tenant and of its application; mu is held.
func (f *Forks) recordsOf(c *Call, now int64) [2]*record {
	return [2]*record{f.record(kind{c.tenant, 0, c.place}, now), f.record(kind{c.tenant, c.app, c.place}, now)}
}

// record returns the record of a kind. The least recently used record makes room for a new one. mu is held.
func (f *Forks) record(of kind, now int64) *record {
	if r := f.records[of]; r != nil {
		return r
	}
	if f.records == nil {
		f.records = map[kind]*record{}
	}
	if len(f.records) >= mostKinds {
		var oldest kind
		least := now + 1
		for k, r := range f.records {
			if r.used < least {
				oldest, least = k, r.used
			}
		}
		delete(f.records, oldest)
	}
	r := &record{used: now}
	f.records[of] = r
	return r
}

// expected is the record of the call's application, or else of its tenant; mu is held.
func (f *Forks) expected(c *Call) Expected {
	if r := f.records[kind{c.tenant, c.app, c.place}]; r != nil && r.calls >= leastCalls {
		return r.expected()
	}
	if r := f.records[kind{c.tenant, 0, c.place}]; r != nil {
		return r.expected()
	}
	return Expected{}
}

// Begun notes the call's first token: from now on its rank has its prompt to pass on.
func (c *Call) Begun(now int64) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.begun == 0 {
		c.begun = now
	}
}

// Ended notes the end of the call. Of one without a first token nothing is learned.
func (c *Call) Ended(now int64) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.ended = now; c.begun == 0 {
		c.of.calls = slices.DeleteFunc(c.of.calls, func(o *Call) bool { return o == c })
	}
}
