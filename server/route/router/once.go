package router

import (
	"encoding/binary"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"hash/maphash"
	"sync"
)

// claims are the named questions that have a live reservation, or are getting one.
type claims struct {
	seed  maphash.Seed
	mu    sync.Mutex
	names map[claimName]*claim // guarded by mu
}

type claimName struct{ tenant, request string }

// claim is one question. done is closed when its answer is there, which stays nil when there is none.
type claim struct {
	digest uint64
	done   chan struct{}
	answer *Answer
}

// take returns the claim of a name; mine is set when this call made it.
func (c *claims) take(name claimName, digest uint64) (_ *claim, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.names[name]; known != nil {
		return known, false
	}
	if c.names == nil {
		c.names = map[claimName]*claim{}
	}
	made := &claim{digest: digest, done: make(chan struct{})}
	c.names[name] = made
	return made, true
}

// drop forgets a claim, unless its name has another one by now.
func (c *claims) drop(name claimName, gone *claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.names[name] == gone {
		delete(c.names, name)
	}
}

// digestOf is a hash of what a retry has in common with its question.
func digestOf(q *intake.Question, seed maphash.Seed) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	var number [8]byte
	part := func(n int) {
		binary.LittleEndian.PutUint64(number[:], uint64(n))
		h.Write(number[:])
	}
	for _, text := range [...]string{q.Model, q.Adapter, q.Salt, q.Session, q.Text} {
		part(len(text))
		h.WriteString(text)
	}
	part(len(q.Body))
	h.Write(q.Body)
	part(int(q.Route))
	part(len(q.IDs))
	for _, id := range q.IDs {
		binary.LittleEndian.PutUint32(number[:], id)
		h.Write(number[:4])
	}
	return h.Sum64()
}
