package attempt

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// The results of a copy of a prompt's beginning, as metrics distinguish them.
const (
	copyDone     = "done"
	copyMissing  = "missing"  // the source had less of it in its cache than the router believed, and computed the rest
	copySource   = "source"   // the source refused or failed
	copyNoCache  = "no_cache" // it passed no cache on
	copyMismatch = "mismatch" // it counted another number of tokens
	copyTarget   = "target"   // the target refused or failed
	copyLate     = "late"     // one of them took far longer than predicted, or is gone
)

// copyPatience is how much longer than four times the predicted time a copy may take. No request waits for it so long.
const copyPatience = 5 * time.Second

// maxCopied bounds the answer of a target: one token.
const maxCopied = 1 << 20

// copier copies the beginnings of prompts from one replica's cache to another's, ahead of requests that wait. A copy that fails costs
// nothing but itself.
type copier struct {
	upstream *upstream.Client
	registry *registry.Registry
	Patience time.Duration
	results  *instruments.Keyed[string]
	log      *slog.Logger
}

// Of returns the copier of the request's prompt; nil where its ids are not known, and for an adapter, which the target may not have in memory.
func (c *copier) Of(rq *intake.Request) chooser.Copier {
	if !rq.Pool.Pairs || rq.Question != nil || rq.Upload != nil || rq.Enc == nil || !rq.Enc.Exact || rq.Enc.Partial || len(rq.Enc.IDs) == 0 ||
		len(rq.Enc.Batch) > 0 || len(rq.Enc.Media) > 0 || rq.Parsed.N > 1 || rq.Adapter != "" {
		return nil
	}
	return c.Prefixes(rq.ID, openai.PrefixLegs{Model: rq.Pool.Served, Salt: rq.Parsed.Salt, IDs: rq.Enc.IDs})
}

// Prefixes returns the copier of a request's prompt.
func (c *copier) Prefixes(id string, legs openai.PrefixLegs) chooser.Copier {
	return &promptCopier{copier: c, id: id, legs: legs}
}

// promptCopier copies beginnings of one prompt. A copy may outlive the request.
type promptCopier struct {
	*copier
	id   string // the request's
	legs openai.PrefixLegs
	made atomic.Int64
}

// Copy implements chooser.Copier.
func (c *promptCopier) Copy(p *chooser.Prefix) {
	go c.copy(p, c.id+"-c"+strconv.FormatInt(c.made.Add(1), 10))
}

// copy copies a prefix and ends the copy.
func (c *promptCopier) copy(p *chooser.Prefix, id string) {
	began := time.Now()
	result, end := copySource, chooser.CopyGivenUp
	// One token more than the blocks: an engine computes the last token anyway, and of whole blocks it would compute the last block.
	if p.Tokens > 0 && p.Tokens < len(c.legs.IDs) {
		one := &copyLegs{copier: c.copier, prefix: p, id: id, legs: c.legs}
		if one.legs.IDs = c.legs.IDs[:p.Tokens+1]; p.From.Replica.Transport() == replica.Mooncake {
			one.legs.Transfer = transferName(id)
		}
		result, end = one.run()
	}
	c.results.Add(result)
	p.Ended(end)
	if end != chooser.Copied {
		c.log.Info("the beginning of a prompt was not copied", "from", string(p.From.Replica.ID), "to", string(p.To.Replica.ID), "tokens", p.Tokens, "result", result,
			"took", time.Since(began))
	}
}

// copyLegs are the two requests of a copy.
type copyLegs struct {
	*copier
	prefix *chooser.Prefix
	id     string
	legs   openai.PrefixLegs
}

// run sends both legs, one after the other, and stops when one of the replicas is gone.
func (l *copyLegs) run() (string, chooser.CopyEnd) {
	p := l.prefix
	ctx, cancel := context.WithTimeout(context.Background(), l.Patience+legTimes*p.Predicted)
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		l.watch(ctx, cancel)
	}()
	defer func() {
		cancel()
		<-watched
	}()
	body, ok := l.send(ctx, p.From, "p", l.legs.Source(), maxPrefilled)
	switch {
	case !ok && ctx.Err() != nil:
		return copyLate, chooser.SourceFailed
	case !ok:
		return copySource, chooser.SourceFailed
	}
	usage := openai.ReadPrefilled(body)
	if l.legs.Transfer != "" {
		var err error
		if usage.Params, err = (bootstraps{l.upstream}).paramsAt(ctx, p.From.Replica, p.From.Rank, l.legs.Transfer); err != nil {
			l.log.Warn("an engine with Mooncake cannot be found", "replica", string(p.From.Replica.ID), "error", err)
		}
	}
	pushes := p.From.Replica.Transport() == replica.NIXLPush
	switch {
	case usage.Params == nil, usage.Mode != "" && (usage.Mode == "push") != pushes:
		return copyNoCache, chooser.SourceFailed
	case usage.PromptTokens >= 0 && usage.PromptTokens != len(l.legs.IDs):
		return copyMismatch, chooser.SourceFailed
	}
	p.Sent()
	body, ok = l.send(ctx, p.To, "d", l.legs.Target(usage.Params), maxCopied)
	switch {
	case !ok && ctx.Err() != nil:
		return copyLate, chooser.TargetFailed
	case !ok, openai.ReadPrefilled(body).PromptTokens == 0:
		return copyTarget, chooser.TargetFailed
	}
	if usage.CachedTokens >= 0 && usage.CachedTokens < p.Tokens-missingSlack {
		return copyMissing, chooser.Copied
	}
	return copyDone, chooser.Copied
}

// missingSlack is how many tokens of a prefix a source may compute before its cache counts as having lacked them.
const missingSlack = 256

// send sends one leg, and returns the answer; false when there is none.
func (l *copyLegs) send(ctx context.Context, to chooser.Place, leg string, body []byte, most int) ([]byte, bool) {
	if to.Replica.Transport() == replica.NIXLPush {
		leg = "s" // engines that push find each other by it
	}
	resp, err := l.upstream.Do(ctx, upstream.Target{Replica: to.Replica, Rank: to.Rank}, &upstream.Request{
		Method: http.MethodPost, Path: "/v1/completions", Header: http.Header{}, ContentType: "application/json", RequestID: l.id + "-" + leg, Body: body,
	})
	if err != nil {
		return nil, false
	}
	defer resp.Close()
	if upstream.Classify(resp, nil) != retry.OK {
		return nil, false
	}
	answer, err := resp.ReadAll(most)
	return answer, err == nil
}

// watch cancels the copy when one of its replicas is gone, until ctx ends.
func (l *copyLegs) watch(ctx context.Context, cancel context.CancelFunc) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	w := watcher{registry: l.registry}
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		if w.isGone(l.prefix.From.Replica.ID) || w.isGone(l.prefix.To.Replica.ID) {
			cancel()
			return
		}
	}
}
