package tokenizer

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/kvpilot/kvpilot/server/kit/cache"
)

// backgroundQueue bounds what waits for its turn in the background, per running one.
const backgroundQueue = 64

// behind completes a prompt's ids after an early answer. When too much waits already it is
// left out: the conversation's next turn then starts from an older beginning.
func (p *Pool) behind(ctx context.Context, key cache.Key, do work) {
	if p.queued.Add(1) > int64(p.cfg.Background*backgroundQueue) {
		p.queued.Add(-1)
		p.metrics.skipped.Add(ctx, 1)
		return
	}
	p.flights.detached(ctx, key, func(ctx context.Context) (*entry, Source, error) {
		defer p.queued.Add(-1)
		select {
		case p.turns <- struct{}{}:
			defer func() { <-p.turns }()
		case <-ctx.Done():
			return nil, "", ctx.Err()
		}
		return do(ctx)
	}, func() { p.queued.Add(-1) })
}

// complete gets all ids of a prompt with a beginning that may be known, and learns from them.
func (p *Pool) complete(ctx context.Context, req Request, m *model, ks keys, k *known) (*entry, Source, error) {
	key := ks.exact
	if k == nil {
		e, source, err := p.full(ctx, req, m, key, nil)
		if err == nil {
			p.sprout(ctx, req, m, ks, e)
		}
		return e, source, err
	}
	if k.delta && !req.NeedFull {
		e, err := p.delta(ctx, req, m, k)
		switch {
		case err == nil:
			p.cache.Put(key, e, e.bytes())
			p.succeed(k)
			if checked() {
				p.verify(ctx, req, m, key, k, e)
			}
			return e, SourceConversation, nil
		case errors.Is(err, errNoDelta):
			m.learned.noDelta(k)
		}
	}
	e, source, err := p.full(ctx, req, m, key, k)
	if err != nil {
		return nil, "", err
	}
	p.learn(ctx, req, m, k, e)
	if k.stable > 0 && m.learned.wantsDelta(k) {
		p.tryDelta(ctx, req, m, key, k, e)
	}
	p.succeed(k)
	return e, source, nil
}

// learn compares a full answer with what was known of its beginning.
func (p *Pool) learn(ctx context.Context, req Request, m *model, k *known, e *entry) {
	broke, position := m.learned.observe(k, e.ids)
	if !broke {
		return
	}
	p.metrics.broken.Add(ctx, 1)
	p.log.Warn("a chat template renders older messages differently: this kind of turn is tokenized in full",
		slog.String("model", m.name), slog.Int("position", position), slog.Int("known", k.stable))
}

// succeed releases the beginning before k when nothing but this conversation came from it: a
// conversation keeps its last two turns.
func (p *Pool) succeed(k *known) {
	k.entry.children.Add(1)
	if k.entry.prev == (cache.Key{}) {
		return
	}
	if before := p.cache.Get(k.entry.prev); before != nil && !before.root && before.children.Load() <= 1 {
		p.cache.Delete(k.entry.prev)
	}
}

// tryDelta compares a delta with a full answer, in the background, to learn.
func (p *Pool) tryDelta(ctx context.Context, req Request, m *model, key cache.Key, k *known, full *entry) {
	p.behind(ctx, p.keyer.mix(key, cache.Key{Hi: 2}), func(ctx context.Context) (*entry, Source, error) {
		e, err := p.delta(ctx, req, m, k)
		switch {
		case err == nil:
			p.judgeDelta(ctx, m, k, slices.Equal(e.ids, full.ids))
		case errors.Is(err, errNoDelta):
			m.learned.noDelta(k)
		}
		return e, SourceConversation, err
	})
}

// verify compares an entry joined from a delta with a full answer, in the background.
func (p *Pool) verify(ctx context.Context, req Request, m *model, key cache.Key, k *known, joined *entry) {
	p.behind(ctx, p.keyer.mix(key, cache.Key{Hi: 3}), func(ctx context.Context) (*entry, Source, error) {
		e, source, err := p.full(ctx, req, m, key, k)
		if err == nil {
			p.learn(ctx, req, m, k, e)
			p.judgeDelta(ctx, m, k, slices.Equal(e.ids, joined.ids))
		}
		return e, source, err
	})
}

func (p *Pool) judgeDelta(ctx context.Context, m *model, k *known, equal bool) {
	m.learned.compared(k, equal)
	if !equal {
		p.metrics.broken.Add(ctx, 1)
		p.log.Warn("a part of a conversation is rendered differently than in the whole: this kind of turn is tokenized in full",
			slog.String("model", m.name))
	}
}
