package router

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"sync"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// idsAnswer is what is known of an engine about requests for token ids.
type idsAnswer uint8

const (
	idsUnknown idsAnswer = iota
	// idsAccepted: it has answered such a request, with ids or without.
	idsAccepted
	// idsRefused: it rejects bodies with that member, and accepts the same ones without it.
	idsRefused
)

// idsSupport remembers which engines reject a body for the member that asks for token ids. It is safe for concurrent use; it holds
// about as many entries as there are replicas.
type idsSupport struct {
	mu sync.RWMutex
	of map[replica.ID]engineIDs // guarded by mu
}

// engineIDs is the answer of one life of an engine.
type engineIDs struct {
	life    uint64
	version string
	answer  idsAnswer
}

// known returns what is known of the replica's engine in its present life.
func (s *idsSupport) known(r *replica.Replica) idsAnswer {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if e := s.of[r.ID]; e.life == r.Life && e.version == r.Version {
		return e.answer
	}
	return idsUnknown
}

// learn notes an answer. When there are many more entries than replicas in view, it drops those of other replicas.
func (s *idsSupport) learn(r *replica.Replica, answer idsAnswer, view *registry.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[replica.ID]engineIDs{}
	}
	if len(s.of) > 2*len(view.Replicas)+64 {
		for id := range s.of {
			if _, there := view.Replica(id); !there {
				delete(s.of, id)
			}
		}
	}
	s.of[r.ID] = engineIDs{life: r.Life, version: r.Version, answer: answer}
}

// engines sends attempts to replicas.
type engines struct {
	upstream *upstream.Client
	registry *registry.Registry
	tokens   *tokenizer.Pool
	ids      idsSupport
	log      *slog.Logger
}

// exchange sends an attempt's request and reads the head of the answer. An engine that rejects a body for a member that the router
// has added gets the body again, without it: the client MUST NOT see the difference.
func (e *engines) exchange(ctx context.Context, rq *request, a *attempt) (*upstream.Response, error) {
	to := upstream.Target{Replica: a.choice.Replica, Rank: a.choice.Rank}
	resp, err := e.do(ctx, rq, a, to)
	if err != nil || !a.asksIDs {
		return resp, err
	}
	known := e.ids.known(to.Replica)
	switch status := resp.Status; {
	case status < 300 && known != idsAccepted:
		e.ids.learn(to.Replica, idsAccepted, e.registry.Snapshot())
		return resp, nil
	case status != http.StatusBadRequest && status != http.StatusUnprocessableEntity:
		return resp, nil
	}
	body, err := resp.ReadAll(maxErrorBody)
	resp.Close()
	if err != nil {
		return nil, err
	}
	if known == idsAccepted && !bytes.Contains(body, []byte(openai.IDsEdit().Name)) {
		resp.Restore(body)
		return resp, nil
	}
	a.withoutIDs = true
	if resp, err = e.do(ctx, rq, a, to); err == nil && resp.Status < 300 {
		e.log.Info("an engine rejects return_token_ids: its streams are not resumed elsewhere", "replica", string(to.Replica.ID), "version", to.Replica.Version)
		e.ids.learn(to.Replica, idsRefused, e.registry.Snapshot())
	}
	return resp, err
}

// do sends an attempt's request once.
func (e *engines) do(ctx context.Context, rq *request, a *attempt, to upstream.Target) (*upstream.Response, error) {
	out := e.toEngine(ctx, rq, a)
	a.hop.observe(out)
	return e.upstream.Do(ctx, to, out)
}

// mayAskIDs reports whether the attempt's engine can be asked for token ids.
func (e *engines) mayAskIDs(a *attempt) bool {
	return !a.withoutIDs && !a.choice.Replica.RustFrontend && e.ids.known(a.choice.Replica) != idsRefused
}
