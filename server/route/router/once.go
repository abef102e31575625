package router

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"sync"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
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

// Claimed reports whether a question of this name has a live reservation, or is getting one.
func (qs *questions) Claimed(tenant, name string) bool {
	qs.claims.mu.Lock()
	defer qs.claims.mu.Unlock()
	return qs.claims.names[claimName{tenant, name}] != nil
}

// chooseOnce answers a question with a name: the first time by a choice, and as long as its
// reservation lives by the same, with its lease renewed.
func (qs *questions) chooseOnce(ctx context.Context, q *Question) (*Answer, error) {
	name, digest := claimName{q.Tenant, q.RequestID}, q.digest(qs.claims.seed)
	for {
		c, mine := qs.claims.take(name, digest)
		if mine {
			return qs.claim(ctx, q, name, c)
		}
		if c.digest != digest {
			return nil, apierror.New(apierror.Conflict, "another request with this request_id is in progress", nil, apierror.WithParam("request_id"))
		}
		select {
		case <-c.done:
		case <-ctx.Done():
			return nil, apierror.From(cause(ctx, ctx.Err()))
		}
		if c.answer == nil {
			continue // the first one failed: this may be the first now
		}
		if d := c.answer.Decision; qs.chooser.Renew(load.Key{Tenant: d.Tenant, ID: d.ID, Attempt: uint32(d.Attempt)}) == load.Applied {
			again := *c.answer
			again.Duplicate = true
			return &again, nil
		}
		// It has ended, or its replica is gone.
		c.answer.Release(chooser.Result{End: decision.EndRemoved, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
		qs.claims.drop(name, c)
	}
}

// claim makes the choice of a claim.
func (qs *questions) claim(ctx context.Context, q *Question, name claimName, c *claim) (a *Answer, err error) {
	defer func() {
		if c.answer == nil {
			qs.claims.drop(name, c)
		}
		close(c.done)
	}()
	if a, err = qs.account(ctx, qs.newQuestion(ctx, q), qs.decide); err != nil {
		return nil, err
	}
	c.answer = a
	a.OnEnd(func(chooser.Result) { qs.claims.drop(name, c) })
	return a, nil
}

// digest is a hash of what a retry has in common with its question.
func (q *Question) digest(seed maphash.Seed) uint64 {
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
