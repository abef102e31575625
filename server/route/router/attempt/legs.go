package attempt

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
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
		prefills: instruments.NewKeyed(s, intake.MetricNS+"prefills", "{request}", "Prompts of split requests by the result of the replica that computes them: done, refused, failed, unreachable, late, no_cache (it passed no cache on), mismatch (it counted other tokens) or canceled. All but done and canceled are served whole by another attempt.",
			prefillResults(), intake.ByResult),
		transfers: instruments.NewKeyed(s, intake.MetricNS+"transfers", "{request}", "Caches computed for another replica, by result: read, lost (that replica failed before its first token) or left (the client left). Blocks of the last two stay pinned for the engine's lease.",
			transferResults(), intake.ByResult),
		pinned: s.UpDownCounter(intake.MetricNS+"pinned_prompts", "{request}", "Prompts whose blocks are believed pinned at the replica that computed them: no other replica has read them."),
	}
	m.pinned.Add(context.Background(), 0)
	return m
}

// prefill has the prompt of a split request computed, and reports whether its cache can be decoded from.
func (l *splitter) prefill(ctx, actx context.Context, rq *intake.Request, d *Delivery, a *Attempt) bool {
	lead := a.Choice.Prefill()
	c := &cache{lead: lead, vigil: newVigil(), usage: openai.Prefilled{PromptTokens: -1, CachedTokens: -1}, legs: openai.Legs{Request: rq.Parsed, Model: rq.Pool.Served, IDs: l.ids(ctx, rq, a)}}
	a.cache = c
	if c.isMooncake() {
		c.legs.Transfer = transferName(legID(rq, a, "p"))
	}
	lctx, stop := context.WithTimeout(actx, l.limit(lead.Decision.PredictedTTFT()))
	defer stop()
	note := rq.Story.Lead(a.Chosen, a.Choice.Decision)
	result := l.ask(ctx, lctx, rq, d, a)
	note.Ended(result, result == prefillDone, c.usage.PromptTokens, c.usage.CachedTokens)
	l.prefills.Add(result)
	if result == prefillDone {
		lead.FirstToken()
		return true
	}
	if result != prefillCanceled {
		l.log.Info("a replica did not prefill for another one: the request is served whole", "request", rq.Call.RequestID, "replica", string(lead.Replica.ID), "result", result)
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
func (l *splitter) ids(ctx context.Context, rq *intake.Request, a *Attempt) []uint32 {
	if rq.Enc == nil || len(rq.Enc.IDs) == 0 {
		return nil
	}
	var last tokenizer.Handoff
	for _, to := range []*chooser.Choice{a.Choice.Prefill(), a.Choice} {
		last = l.engines.tokens.Handoff(ctx, rq.EncodeRequest(), rq.Enc, to.Replica)
		if last.Form == tokenizer.HandoffNone {
			return nil
		}
	}
	a.handedOff = true
	return last.IDs
}

// ask sends the leg and reads its answer.
func (l *splitter) ask(ctx, lctx context.Context, rq *intake.Request, d *Delivery, a *Attempt) string {
	c := a.cache
	to := c.lead.Replica
	pass, ok := l.blame.breaker.Allow(to.ID)
	if !ok {
		return prefillRefused
	}
	resp, err := l.engines.upstream.Do(lctx, upstream.Target{Replica: to, Rank: c.lead.Rank}, &upstream.Request{
		Method: rq.Call.EngineMethod(), Path: rq.Call.EnginePath(), Header: rq.Header(), Client: rq.Call.Client, ContentType: rq.Call.ContentType,
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
	case rq.Enc != nil && rq.Enc.Exact && c.usage.PromptTokens >= 0 && c.usage.PromptTokens != rq.Enc.Tokens:
		return prefillMismatch
	}
	return prefillDone
}

// result names the outcome of the leg.
func (l *splitter) result(ctx, lctx context.Context, a *Attempt, outcome retry.Verdict) string {
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
func (l *splitter) settle(rq *intake.Request, d *Delivery, a *Attempt, pass breaker.Pass, outcome retry.Verdict, result string) {
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
func (l *splitter) send(ctx, actx context.Context, rq *intake.Request, a *Attempt) context.Context {
	c := a.cache
	c.sent = time.Now()
	a.Choice.Sent()
	go l.watch(rq, a)
	if c.lingers() {
		return c.linger(ctx, actx)
	}
	return actx
}

// Read notes that the replica that decodes has read the cache.
func (l *splitter) Read(a *Attempt) {
	if c := a.cache; c != nil {
		c.vigil.close()
		if l.release(c, decision.EndCompleted) {
			l.transfers.Add(transferRead)
		}
	}
}

// end notes the end of an attempt. The engine that computed the prompt does not learn that its blocks are not needed: they are
// counted until their lease ends.
func (l *splitter) end(a *Attempt, end decision.End) {
	c := a.cache
	if c == nil {
		return
	}
	if c.vigil.close(); end == decision.EndCompleted {
		l.Read(a)
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
	lease := l.Lease
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
func (l *splitter) abandon(rq *intake.Request, d *Delivery, t *Tries, a *Attempt) {
	a.Ended = true
	l.blame.settleAt(rq, d, a.Choice.Replica.ID, a.Pass, retry.Canceled)
	a.Choice.Release(chooser.ResultOf(decision.EndHandedOver))
	a.cancel()
	t.Ask.Avoid = append(t.Ask.Avoid, a.cache.lead.Replica.ID)
	t.whole()
	d.Attempts--
}

// Again reports whether the request is served whole after an attempt that ended with f: where it was split, and the client has nothing of
// the answer. Whatever went wrong may be the transfer's doing.
func (l *splitter) Again(ctx context.Context, t *Tries, d *Delivery, f *Failure) bool {
	a := d.Attempt
	if a == nil || a.cache == nil || d.Begun || ctx.Err() != nil || f.Outcome == retry.Canceled || f.Unchosen {
		return false
	}
	l.log.Info("a split request failed before its first token: it is served whole", "request", t.Ask.RequestID, "replica", string(a.Choice.Replica.ID),
		"prefill", string(a.cache.lead.Replica.ID), "outcome", f.Outcome.String())
	if f.Outcome != retry.EngineError && f.Outcome != retry.ClientFault {
		t.Ask.Exclude = append(t.Ask.Exclude, a.Choice.Replica.ID)
	}
	t.Ask.Avoid = append(t.Ask.Avoid, a.cache.lead.Replica.ID)
	t.failed = f
	t.whole()
	return true
}
