package enginesim

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim/core"
	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// generation is one request's answers while the engine writes them.
type generation struct {
	l       *life
	c       *call
	s       *sampling
	id      string
	created int64
	ready   chan struct{}
	choices []*choice
	// promptTokens counts each prompt once, as usage does.
	promptTokens int
	// pin is the name of the prompt's blocks, where they are kept for another engine.
	pin string
	// lost: the cache that another engine computed could not be read.
	lost atomic.Bool
	// dead: the engine ended before its answer did.
	dead bool
}

// start checks the request, queues its sequences and returns them; nil: an error was answered.
func (l *life) start(c *call, s *sampling, prefix string, prompts []promptIDs) *generation {
	rank, bad := l.rank(c.r)
	if bad != nil {
		l.fail(c, *bad)
		return nil
	}
	g := &generation{l: l, c: c, s: s, created: time.Now().Unix(), ready: make(chan struct{}, 1)}
	g.id = prefix + l.requestID(c.r, s.RequestID)
	limits := make([]int, len(prompts))
	for i := range prompts {
		if limits[i], bad = l.fit(s, &prompts[i]); bad != nil {
			l.fail(c, *bad)
			return nil
		}
	}
	given := false
	for _, p := range prompts {
		g.promptTokens += len(p.ids)
		given = given || p.given
	}
	if (exchange{g}).kills() {
		l.fail(c, apiError{Status: http.StatusInternalServerError, Message: "EngineCore encountered an issue. See stack trace (above) for the root cause.", Type: "InternalServerError"})
		_ = http.NewResponseController(c.w).Flush() // a client that left needs no answer
		l.Restart(time.Second)
		return nil
	}
	for i, p := range prompts {
		g.submit(p, limits[i], rank)
	}
	l.load.Add(1)
	l.records.update(func() {
		r := c.record
		r.Model, r.PromptTokens, r.GivenIDs, r.Status = s.Model, g.promptTokens, given, http.StatusOK
	})
	return g
}

// requestID is the client's, or a new one of 16 hex digits.
func (e *Engine) requestID(r *http.Request, fromBody string) string {
	if id := r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	if fromBody != "" {
		return fromBody
	}
	return e.newID()
}

// newID makes an id that this engine has not used, and hardly any other.
func (e *Engine) newID() string {
	n := e.ids.Add(1) + uint64(e.lives.Load())<<40
	n *= 0x9e3779b97f4a7c15 // spreads counters over all digits, without collisions
	return fmt.Sprintf("%016x", n^e.salt)
}

// submit queues n sequences for one prompt.
func (g *generation) submit(p promptIDs, maxTokens, rank int) {
	n := 1
	if g.s.N != nil {
		n = *g.s.N
	}
	for i := range n {
		params := core.Params{
			Prompt: p.ids, Space: g.l.space(g.s.Model, g.s.CacheSalt, p.items),
			MaxTokens: maxTokens, MinTokens: g.s.MinTokens,
			End: vocab.TurnEnd, IgnoreEnd: g.s.IgnoreEOS, StopIDs: g.s.StopTokenIDs,
			NoHits: g.s.PromptLogprobs != nil, Ready: g.ready,
		}
		if (exchange{g}).prefills() {
			g.pin = exchange{g}.pinName()
			params.Pin = exchange{g}.pinOf(p.ids)
		}
		if maxTokens > 0 {
			write := newWriter
			if p.given {
				write = newContinuation
			}
			params.Next = write(writerParams{
				prompt: p.ids, variant: uint64(i), seed: g.s.Seed, adapter: params.Space.Adapter, mean: g.l.cfg.MeanAnswer,
				least: g.s.MinTokens, endless: g.s.IgnoreEOS, forced: p.forced, said: p.said,
			}).next
		}
		ch := &choice{core: g.l.cores[rank], index: len(g.choices), prompt: p, s: g.s, callID: g.l.newID(), bare: true}
		if (exchange{g}).reads() && params.Next != nil {
			params.Next = ch.written(params.Next)
		}
		seq := core.NewSequence(params)
		ch.seq = seq
		g.choices = append(g.choices, ch)
		if (exchange{g}).reads() && maxTokens > 0 {
			g.l.work.Go(func() { exchange{g}.fetch(g.c.r.Context(), ch) })
			continue
		}
		if every := time.Duration(g.c.faults.Drip); every > 0 && maxTokens > 0 {
			go seq.Feign(g.c.r.Context(), every)
			continue
		}
		g.l.cores[rank].Submit(seq)
	}
}

// each calls on with every delta until all choices are done; false: the client left, the
// engine died, or on returned false.
func (g *generation) each(on func(*choice, delta) bool) bool {
	left := len(g.choices)
	for left > 0 {
		select {
		case <-g.ready:
		case <-g.c.r.Context().Done():
			return false
		}
		if g.lost.Load() {
			return false
		}
		for _, ch := range g.choices {
			if ch.finish != "" {
				continue
			}
			d := ch.poll()
			if ch.finish == core.FinishAbort.String() {
				g.dead = true
				return false
			}
			if (len(d.ids) > 0 || d.done) && !on(ch, d) {
				return false
			}
			if d.done {
				left--
			}
		}
	}
	return true
}

// abort frees everything at once: the client left.
func (g *generation) abort() {
	for _, ch := range g.choices {
		ch.core.Abort(ch.seq, core.FinishAbort)
	}
}

// end books the finished request, and cuts the connection when the engine has died.
func (g *generation) end(ok bool) {
	g.book(ok)
	if g.dead {
		panic(http.ErrAbortHandler)
	}
}

func (g *generation) book(ok bool) {
	g.l.load.Add(-1)
	if !ok {
		g.abort()
	}
	finish := "abort"
	if ok {
		finish = g.choices[0].finish
	}
	g.l.records.update(func() {
		r := g.c.record
		r.CachedTokens, r.OutputTokens, r.Finish = g.cached(), g.outputTokens(), finish
	})
	for _, ch := range g.choices {
		g.l.meters.observe(ch.seq.Times(), len(ch.prompt.ids), ch.seq.Cached(), len(ch.ids))
	}
}

// cached is the hit of the last answer, which vLLM reports: of several samples it finds the blocks that the first one has stored.
func (g *generation) cached() int {
	if (exchange{g}).isMooncake() && (exchange{g}).reads() { // vLLM counts all that came from the other engine
		return g.promptTokens
	}
	if kv := g.s.KVTransfer; (exchange{g}).reads() && kv.CachedTokens != nil { // as vLLM reports it: the other engine's
		return *kv.CachedTokens
	}
	return g.choices[len(g.choices)-1].seq.Cached()
}

func (g *generation) outputTokens() int {
	n := 0
	for _, ch := range g.choices {
		n += len(ch.ids)
	}
	return n
}

// createdCache rounds the prompt down to blocks and takes off the hit: the tokens that the request put into the cache.
func (g *generation) createdCache() int {
	size := g.l.cfg.Core.BlockSize
	return g.promptTokens/size*size - g.cached()
}
