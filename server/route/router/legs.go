package router

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// The results of the leg of a split request that prefills, as metrics distinguish them.
const (
	prefillDone        = "done"
	prefillRefused     = "refused"     // the replica answered 4xx or 503
	prefillFailed      = "failed"      // it answered 5xx, or broke off its answer
	prefillUnreachable = "unreachable" // it did not answer
	prefillLate        = "late"        // it took far longer than predicted, or it stalled
	prefillNoCache     = "no_cache"    // it passed no cache on
	prefillMismatch    = "mismatch"    // it counted another number of tokens than the router
	prefillCanceled    = "canceled"    // the client left
)

func prefillResults() []string {
	return []string{prefillDone, prefillRefused, prefillFailed, prefillUnreachable, prefillLate, prefillNoCache, prefillMismatch, prefillCanceled}
}

// The results of the transfer of a cache that was computed for another replica.
const (
	transferRead = "read" // the other replica answered from it
	transferLost = "lost" // that one failed before its first token
	transferLeft = "left" // the client left before
)

func transferResults() []string { return []string{transferRead, transferLost, transferLeft} }

// splitter serves requests that are split between two replicas: it has the prompt computed on one, and gives what that one passes on to the
// attempt on the other.
type splitter struct {
	watcher
	bootstraps
	engines   *sender
	blame     *blame
	prefills  *instruments.Keyed[string]
	transfers *instruments.Keyed[string]
	// pinned counts the prompts whose blocks wait at the replica that computed them for the end of their lease.
	pinned metric.Int64UpDownCounter
	log    *slog.Logger
}

// legMetrics declares the metrics of legs.
type legMetrics struct {
	prefills, transfers instruments.Keyed[string]
	pinned              metric.Int64UpDownCounter
}

func newLegMetrics(s *instruments.Set) legMetrics {
	m := legMetrics{
		prefills: instruments.NewKeyed(s, metricNS+"prefills", "{request}", "Prompts of split requests by the result of the replica that computes them: done, refused, failed, unreachable, late, no_cache (it passed no cache on), mismatch (it counted other tokens) or canceled. All but done and canceled are served whole by another attempt.",
			prefillResults(), byResult),
		transfers: instruments.NewKeyed(s, metricNS+"transfers", "{request}", "Caches computed for another replica, by result: read, lost (that replica failed before its first token; the request is served whole) or left (the client left). Blocks of lost and left ones stay pinned for the engine's lease.",
			transferResults(), byResult),
		pinned: s.UpDownCounter(metricNS+"pinned_prompts", "{request}", "Prompts whose blocks are taken to be pinned at the replica that computed them, because no other replica has read them."),
	}
	m.pinned.Add(context.Background(), 0)
	return m
}

// prefill has the prompt of a split request computed, and reports whether its cache can be decoded from.
func (l *splitter) prefill(ctx, actx context.Context, rq *request, d *delivery, a *attempt) bool {
	lead := a.choice.Prefill()
	c := &cache{lead: lead, vigil: newVigil(), usage: openai.Prefilled{PromptTokens: -1, CachedTokens: -1}, legs: openai.Legs{Request: rq.parsed, Model: rq.pool.Served, IDs: l.ids(ctx, rq, a)}}
	a.cache = c
	if c.isMooncake() {
		c.legs.Transfer = transferName(legID(rq, a, "p"))
	}
	lctx, stop := context.WithTimeout(actx, l.limit(lead.Decision.PredictedTTFT()))
	defer stop()
	note := rq.story.Lead(a.chosen, a.choice.Decision)
	result := l.ask(ctx, lctx, rq, d, a)
	note.Ended(result, result == prefillDone, c.usage.PromptTokens, c.usage.CachedTokens)
	l.prefills.Add(result)
	if result == prefillDone {
		lead.FirstToken()
		return true
	}
	if result != prefillCanceled {
		l.log.Info("a replica did not prefill for another one: the request is served whole", "request", rq.call.RequestID, "replica", string(lead.Replica.ID), "result", result)
	}
	if c.isKept() { // its blocks are pinned
		lead.FirstToken()
		l.pin(c)
		return false
	}
	l.release(c, decision.EndMoved)
	return false
}

// ids are the prompt's ids where both replicas take them instead of the text. Either both legs have them or none.
func (l *splitter) ids(ctx context.Context, rq *request, a *attempt) []uint32 {
	if rq.enc == nil || len(rq.enc.IDs) == 0 {
		return nil
	}
	var last tokenizer.Handoff
	for _, to := range []*chooser.Choice{a.choice.Prefill(), a.choice} {
		last = l.engines.tokens.Handoff(ctx, rq.encodeRequest(), rq.enc, to.Replica)
		if last.Form == tokenizer.HandoffNone {
			return nil
		}
	}
	a.handedOff = true
	return last.IDs
}

// ask sends the leg and reads its answer.
func (l *splitter) ask(ctx, lctx context.Context, rq *request, d *delivery, a *attempt) string {
	c := a.cache
	to := c.lead.Replica
	pass, ok := l.blame.breaker.Allow(to.ID)
	if !ok {
		return prefillRefused
	}
	resp, err := l.engines.upstream.Do(lctx, upstream.Target{Replica: to, Rank: c.lead.Rank}, &upstream.Request{
		Method: rq.call.method(), Path: rq.call.path(), Header: rq.header(), Client: rq.call.Client, ContentType: rq.call.ContentType,
		RequestID: legID(rq, a, "p"), Body: c.legs.Prefill(),
	})
	outcome := upstream.Classify(resp, err)
	var body []byte
	if err == nil {
		defer resp.Close()
		if outcome == retry.OK {
			if body, err = resp.ReadAll(maxPrefilled); err != nil {
				outcome = upstream.Classify(nil, err)
			}
		}
	}
	result := l.result(ctx, lctx, a, outcome)
	l.settle(rq, d, a, pass, outcome, result)
	if result != prefillDone {
		return result
	}
	c.usage = openai.ReadPrefilled(body)
	if c.params = c.usage.Params; c.isMooncake() {
		var err error
		if c.params, err = l.bootstraps.params(lctx, c.lead, c.legs.Transfer); err != nil {
			l.log.Warn("an engine with Mooncake cannot be found", "replica", string(to.ID), "error", err)
		}
	}
	switch {
	case c.params == nil, !c.fits():
		return prefillNoCache
	case rq.enc != nil && rq.enc.Exact && c.usage.PromptTokens >= 0 && c.usage.PromptTokens != rq.enc.Tokens:
		return prefillMismatch
	}
	return prefillDone
}

// result names the outcome of the leg.
func (l *splitter) result(ctx, lctx context.Context, a *attempt, outcome retry.Verdict) string {
	switch {
	case outcome == retry.OK:
		return prefillDone
	case ctx.Err() != nil:
		return prefillCanceled
	case a.isStopped(ctx), lctx.Err() != nil:
		return prefillLate
	}
	switch outcome {
	case retry.ClientFault, retry.Refused, retry.Unavailable:
		return prefillRefused
	case retry.EngineError, retry.Gateway, retry.Broken, retry.Malformed:
		return prefillFailed
	default:
		return prefillUnreachable
	}
}

// settle reports the outcome of the leg against the replica that was to prefill. A 4xx is the other replica's to repeat: the
// client gets its words.
func (l *splitter) settle(rq *request, d *delivery, a *attempt, pass breaker.Pass, outcome retry.Verdict, result string) {
	switch result {
	case prefillLate:
		outcome = retry.Stalled
		if a.moves.Load() {
			outcome = retry.Moved
		}
	case prefillCanceled:
		outcome = retry.Canceled
	default:
		if outcome == retry.ClientFault {
			outcome = retry.Canceled
		}
	}
	l.blame.settleAt(rq, d, a.cache.lead.Replica.ID, pass, outcome)
}

// send prepares an attempt to decode from its cache: from now on the answer has a time limit. It returns the context of the leg.
func (l *splitter) send(ctx, actx context.Context, rq *request, a *attempt) context.Context {
	c := a.cache
	c.sent = time.Now()
	a.choice.Sent()
	go l.watch(rq, a)
	if c.lingers() {
		return c.linger(ctx, actx)
	}
	return actx
}

// read notes that the replica that decodes has read the cache.
func (l *splitter) read(a *attempt) {
	if c := a.cache; c != nil {
		c.vigil.close()
		if l.release(c, decision.EndCompleted) {
			l.transfers.Add(transferRead)
		}
	}
}

// end notes the end of an attempt. The engine that computed the prompt does not learn that its blocks are not needed: they are
// counted until their lease ends.
func (l *splitter) end(a *attempt, end decision.End) {
	c := a.cache
	if c == nil {
		return
	}
	if c.vigil.close(); end == decision.EndCompleted {
		l.read(a)
		return
	}
	if !l.pin(c) {
		return
	}
	if end == decision.EndCanceled {
		l.transfers.Add(transferLeft)
	} else {
		l.transfers.Add(transferLost)
	}
}

// release ends the booking of the rank that prefills; false when it has ended.
func (l *splitter) release(c *cache, end decision.End) bool {
	if c.over.Swap(true) {
		return false
	}
	c.lead.Release(c.booked(end))
	return true
}

// pin keeps the booking until the lease of the blocks ends; false when it has ended.
func (l *splitter) pin(c *cache) bool {
	if c.over.Swap(true) {
		return false
	}
	l.pinned.Add(context.Background(), 1)
	lease := l.lease
	if c.isMooncake() {
		lease *= mooncakeLeases
	}
	time.AfterFunc(lease, func() {
		l.pinned.Add(context.Background(), -1)
		c.lead.Release(c.booked(decision.EndCompleted))
	})
	return true
}

// abandon ends an attempt whose prompt was not computed, before anything was sent to the replica that was to decode.
func (l *splitter) abandon(rq *request, d *delivery, t *tries, a *attempt) {
	a.ended = true
	l.blame.settleAt(rq, d, a.choice.Replica.ID, a.pass, retry.Canceled)
	a.choice.Release(chooser.ResultOf(decision.EndHandedOver))
	a.cancel()
	t.ask.Avoid = append(t.ask.Avoid, a.cache.lead.Replica.ID)
	t.whole()
	d.attempts--
}

// again reports whether the request is served whole after an attempt that ended with f: where it was split, and the client has nothing of
// the answer. Whatever went wrong may be the transfer's doing.
func (l *splitter) again(ctx context.Context, t *tries, d *delivery, f *failure) bool {
	a := d.attempt
	if a == nil || a.cache == nil || d.begun || ctx.Err() != nil || f.outcome == retry.Canceled || f.unchosen {
		return false
	}
	l.log.Info("a split request failed before its first token: it is served whole", "request", t.ask.RequestID, "replica", string(a.choice.Replica.ID),
		"prefill", string(a.cache.lead.Replica.ID), "outcome", f.outcome.String())
	if f.outcome != retry.EngineError && f.outcome != retry.ClientFault {
		t.ask.Exclude = append(t.ask.Exclude, a.choice.Replica.ID)
	}
	t.ask.Avoid = append(t.ask.Avoid, a.cache.lead.Replica.ID)
	t.failed = f
	t.whole()
	return true
}
