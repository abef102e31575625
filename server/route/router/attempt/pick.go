package attempt

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
)

// picker has the chooser decide and book, on a replica that the breaker admits.
type picker struct {
	registry *registry.Registry
	decider  Decider
	breaker  *breaker.Breaker
	tokens   *tokenizer.Pool
	guesses  Guesses
	keyless  *keyless
	standby  intake.Standbys
}

// Guesses notes that a rank was sent a prompt which is known by its text only, so that the rest of the conversation follows it.
type Guesses interface {
	Believe(slot replica.Slot, hashes []blockhash.Hash)
}

// pick makes the chooser decide and book the attempt, on a replica whose breaker admits it. The breaker may have changed since the
// chooser asked it, and another router's decider has not asked this one; then there is another choice, which avoids the replica.
func (p *picker) pick(ctx context.Context, rq *intake.Request, t *Tries, a *Attempt) error {
	for {
		if err := p.Choose(ctx, rq, t, a); err != nil {
			return err
		}
		if p.admitted(rq, t, a) {
			return nil
		}
		a.Choice.Release(chooser.ResultOf(decision.EndHandedOver))
		t.passOver(a.Choice.Replica.ID)
	}
}

// admitted takes the breaker's pass. A replica with an open breaker is used where the breaker says so: when no other one is left.
func (p *picker) admitted(rq *intake.Request, t *Tries, a *Attempt) (ok bool) {
	id := a.Choice.Replica.ID
	if a.pass, ok = p.breaker.Allow(id); ok {
		return true
	}
	a.forced = !a.Choice.Decision.HasOtherReplica() || slices.Contains(t.Ask.Avoid, id) || rq.Holder == id
	if !a.forced {
		var usable []replica.ID
		for _, o := range t.Ask.Replicas {
			if o.State == replica.StateReady && !slices.Contains(t.Ask.Exclude, o.ID) {
				usable = append(usable, o.ID)
			}
		}
		a.forced = !slices.Contains(p.breaker.Bar(nil, usable, t.Ask.Avoid, len(t.Ask.Exclude)), id)
	}
	return a.forced
}

// Choose makes the chooser decide and book the attempt.
func (p *picker) Choose(ctx context.Context, rq *intake.Request, t *Tries, a *Attempt) error {
	began := time.Now()
	id := rq.Story.Plan()
	t.Ask.TraceID, t.Ask.SpanID = span.IDs(rq.Span, id)
	t.Ask.Sampled = id.IsValid() && rq.Span.SpanContext().IsSampled()
	choice, err := p.chooseNow(ctx, rq, t)
	a.chosen = time.Now()
	rq.Story.Choice(id, began, a.chosen, choice, err)
	if err != nil {
		return p.undecided(ctx, rq, t, err)
	}
	a.Choice, a.held = choice, choice.Decision.Held
	a.overhead = a.chosen.Sub(rq.Received) - rq.Tokenizing - a.held - t.before
	p.whole(rq, choice)
	return nil
}

// maxViews bounds how many views of the fleet one choice looks at.
const maxViews = 3

// chooseNow asks for a rank of the pool as it is now. When there is none and the view of the fleet has changed since, for example because
// a replica's ranks were replaced by new ones, it asks again.
func (p *picker) chooseNow(ctx context.Context, rq *intake.Request, t *Tries) (choice *chooser.Choice, err error) {
	for range maxViews {
		view := p.registry.Snapshot()
		if pool, ok := view.Pool(rq.Pool.Model); ok { // it may have changed since the last attempt
			t.Ask.Replicas = pool.Replicas
		}
		var none *chooser.NoReplica
		if choice, err = p.decider.Choose(ctx, &t.Ask); !errors.As(err, &none) {
			break
		}
		had := rq.Standby.Took
		if waits := p.standby.Wait(ctx, rq, rq.Pool.Model); waits != nil {
			return nil, waits
		}
		t.before += rq.Standby.Took - had
		if p.registry.Snapshot() == view {
			break
		}
	}
	return choice, err
}

// LearnRouted reports where a prompt went to the parts that learn from it.
func (p *picker) LearnRouted(ctx context.Context, rq *intake.Request, t *Tries, a *Attempt) {
	p.keyless.note(ctx, rq, a.Choice.Decision)
	pick := a.Choice.Decision.Pick()
	if pick == nil || rq.Enc == nil || a.point != nil || a.Choice.Decision.TooLong {
		return
	}
	// Of other ranks it is not known what they hold, nor was it looked up for a policy that reads no cache.
	if rq.Question == nil && pick.Feed == kvblock.FeedExact && t.Ask.Hashes != nil {
		p.tokens.Routed(rq.Pool.Served, rq.Enc, pick.Slot, rq.Adapter, a.Choice.Decision.Expected())
	}
	if rq.Enc.Known() == 0 && t.Ask.Hashes != nil && p.guesses != nil {
		p.guesses.Believe(pick.Slot, t.Ask.Hashes(int(pick.BlockSize)))
	}
}

// whole reports the whole prompt to a choice that was made with its beginning, when it is known in time.
func (p *picker) whole(rq *intake.Request, c *chooser.Choice) {
	if rq.Enc == nil || !rq.Enc.Partial {
		return
	}
	enc, pool, ns := rq.Enc, rq.Pool.Served, rq.Namespace()
	enc.OnWhole(func(full *tokenizer.Encoding) {
		if !full.Exact {
			return
		}
		held, ok := c.Whole(full.Hashes(int(c.Decision.Pick().BlockSize), ns), full.Tokens)
		if ok && enc.Answer.Known > 0 && enc.Answer.Slot == c.Slot {
			p.tokens.Repeated(pool, enc, held)
		}
	})
}

// undecided turns the chooser's refusal into the caller's error. After a failed attempt, an empty
// pool means that every replica was tried: the attempt's own fault is the truer answer.
func (p *picker) undecided(ctx context.Context, rq *intake.Request, t *Tries, err error) error {
	var none *chooser.NoReplica
	var refused *chooser.Refused
	switch {
	case errors.As(err, &none):
		if t.failed != nil {
			return t.failed.Public
		}
		if full(none.Decision) {
			return apierror.New(apierror.Overloaded, "every replica that may serve the request has reached its limit of requests", err, apierror.WithRetryAfter(max(none.RetryAfter, time.Second)))
		}
		return apierror.New(apierror.NoReplica, "no replica of the model `"+intake.Clip(rq.Pool.Model, 128)+"` can take a request now", err, apierror.WithRetryAfter(max(none.RetryAfter, time.Second)))
	case errors.As(err, &refused):
		reason, message := apierror.Overloaded, "the router's queue is full"
		switch refused.Cause {
		case "deadline":
			reason, message = apierror.DeadlineUnreachable, "no replica can answer within the deadline"
		case "target":
			reason, message = apierror.DeadlineUnreachable, missed(t.Ask.Options.Targets)
			if w := refused.Memory; w != nil {
				message += " (the session's context waits for memory: " + w.String() + ")"
			}
		case "timeout":
			message = "no replica became free in time"
		case "memory":
			message = "no replica had memory for the context of this session in time: the programs that began before it fill the fleet's memory"
			if w := refused.Memory; w != nil {
				message = "no replica had memory for the context of this session in time: " + w.String()
			}
		case "shutdown":
			reason, message = apierror.ShuttingDown, "the router is stopping"
		}
		return apierror.New(reason, message, err, apierror.WithRetryAfter(max(refused.RetryAfter, time.Second)))
	case errors.Is(err, chooser.ErrInvalid):
		return apierror.New(apierror.InvalidBody, err.Error(), err)
	case errors.Is(err, chooser.ErrDuplicate):
		return apierror.New(apierror.Conflict, "a reservation with this id exists", err)
	}
	return apierror.From(intake.Cause(ctx, err))
}

// missed says which targets no replica can meet.
func missed(own decision.Targets) string {
	var limits []string
	if own.TTFT > 0 {
		limits = append(limits, "the first token within "+own.TTFT.String())
	}
	if own.TPOT > 0 {
		limits = append(limits, own.TPOT.String()+" per output token")
	}
	if len(limits) == 0 {
		return "no replica can meet the model's latency targets now; retry later"
	}
	return "no replica can meet the request's latency targets now (" + strings.Join(limits, ", ") + "); retry later or with a longer target"
}

// full reports whether a limit of requests is what keeps the request from being served.
func full(d *decision.Decision) bool {
	return slices.ContainsFunc(d.List(), func(c decision.Candidate) bool { return c.Veto == decision.VetoCap })
}

// Decider decides and books: a *chooser.Chooser, or the part that asks another router's.
type Decider interface {
	Choose(ctx context.Context, req *chooser.Request) (*chooser.Choice, error)
}
