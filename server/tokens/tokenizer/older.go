package tokenizer

import (
	"context"
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/kit/cache"
)

// A beginning is older when it ends before the turn before the last: other routers of the fleet had the turns in between, or this
// one dropped them. Ranks hold those turns too, so an early answer would hide their blocks. The prompt waits for its ids instead,
// at most for as long as the computation of the missing tokens takes. The call to a replica is the same call that otherwise runs in the
// background.

const (
	// missed is how many tokens may be missing: two blocks of the usual size.
	missed = 32
	// worth is the time that an engine takes for one token of a prompt; fast engines take less.
	worth = 100 * time.Microsecond
	// leastWait and mostWait bound the wait.
	leastWait = 50 * time.Millisecond
	mostWait  = time.Second
)

// worthwhile is how long a prompt waits for all its ids because its beginning is older. It is 0 where the beginning is the turn before
// or next to it, where the ids of the turn before are under way here, and where the replicas have too much to tokenize already.
func (p *Pool) worthwhile(pr *prompt.Prompt, ks keys, k *known, m *model) time.Duration {
	last := k.steps[len(k.steps)-1].from
	size := 0
	for _, message := range pr.Messages[k.count:last] {
		size += len(message)
	}
	n := m.estimate(size)
	if size == 0 || n <= missed || p.background.full() ||
		p.flights.under(p.mem.keyer.exactOf(ks.upTo[last-1], prompt.KindChat)) {
		return 0
	}
	return max(p.leastWait, min(time.Duration(n)*worth, mostWait))
}

// waiting is a prompt that waits for its ids, for the ids of an older beginning no longer than patience.
type waiting struct {
	req      Request
	model    *model
	key      cache.Key
	patience time.Duration
}

// Outcomes of the wait of a prompt with an older beginning.
const (
	olderWhole  = "whole"  // all ids came
	olderLate   = "late"   // they did not come in time
	olderFailed = "failed" // no replica gave them
)

// waitOrBegin waits for all ids of a prompt with a beginning that is known but not trusted, or older. The beginning stands for them
// once it is trusted, as other conversations may show, and the wait of an older one has ended or failed.
func (p *Pool) waitOrBegin(ctx context.Context, w waiting, k *known, all work) (*Encoding, error) {
	patience, stop := context.WithTimeout(context.WithoutCancel(ctx), w.patience)
	defer stop()
	news := func() <-chan struct{} {
		if patience.Err() == nil {
			return patience.Done()
		}
		return w.model.learned.watch()
	}
	trusted := *k // the flight reads k
	judge := func() bool {
		trusted.stable, trusted.delta = w.model.learned.judge(k.entry, k.steps)
		return trusted.stable > 0
	}
	pr, begun := w.req.Prompt, new(later)
	e, source, shared, err := p.flights.waitOr(ctx, w.key, p.notifying(begun, &w.req, w.model, all), news, func() bool { return patience.Err() != nil && judge() })
	if shared {
		p.metrics.Shared.Add(ctx, 1)
	}
	outcome := olderWhole
	switch _, refused := errors.AsType[*ClientFault](err); {
	case err != nil && (refused || errors.Is(ctx.Err(), context.Canceled) || !judge()):
		return p.failed(pr, w.model, err)
	case err != nil:
		outcome = olderFailed
	case e == nil:
		outcome = olderLate
	}
	if w.patience > 0 {
		p.metrics.Older.Add(outcome)
	}
	if e != nil {
		return fromEntry(pr, e, source, w.model), nil
	}
	enc := trusted.begun(pr, w.model, w.key)
	enc.later = begun
	return enc, nil
}
