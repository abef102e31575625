package tokenizer

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/kit/cache"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/parity"
)

// completer turns prompts into all their ids: from the known beginning of a conversation, which it learns to trust, else by asking.
type completer struct {
	cfg        *Config
	log        *slog.Logger
	metrics    *metrics
	mem        *memory
	asker      asker
	background *background
}

// conversational reports whether what is known of the beginning may stand for it.
func (c *completer) conversational(pr *prompt.Prompt) bool {
	return c.cfg.Conversations && c.cfg.CacheBytes > 0 && pr.Kind == prompt.KindChat && len(pr.Messages) > 1 &&
		!pr.HasMedia && pr.Truncate == 0 && string(pr.Field("continue_final_message")) != "true"
}

// recall finds the longest known beginning of the prompt, or nil.
func (c *completer) recall(pr *prompt.Prompt, ks keys, m *model) *known {
	n := len(ks.upTo)
	for i := n - 2; i >= max(0, n-maxProbes); i-- {
		key := c.mem.keyer.exactOf(ks.upTo[i], prompt.KindChat)
		e := c.mem.lookup(key, m)
		if e == nil {
			continue
		}
		k := &known{entry: e, key: key, count: i + 1, steps: stepsOf(pr, i+1)}
		k.stable, k.delta = m.learned.judge(e, k.steps)
		return k
	}
	return c.recallRoot(pr, ks, m)
}

// complete gets all ids of a prompt with a beginning that may be known, and learns from them.
func (c *completer) complete(ctx context.Context, req Request, m *model, ks keys, k *known) (*entry, Source, error) {
	key := ks.exact
	if k == nil {
		e, source, err := c.full(ctx, req, m, key, nil)
		if err == nil {
			c.sprout(ctx, req, m, ks, e)
		}
		return e, source, err
	}
	if k.delta && !req.NeedFull {
		e, err := c.delta(ctx, req, m, k)
		switch {
		case err == nil:
			c.mem.prompts.Put(key, e, e.bytes())
			c.succeed(k)
			if checked() {
				c.verify(ctx, req, m, key, k, e)
			}
			return e, SourceConversation, nil
		case errors.Is(err, errNoDelta):
			m.learned.noDelta(k)
		}
	}
	e, source, err := c.full(ctx, req, m, key, k)
	if err != nil {
		return nil, "", err
	}
	c.learn(ctx, req, m, k, e)
	if k.stable > 0 && m.learned.wantsDelta(k) {
		c.tryDelta(ctx, req, m, key, k, e)
	}
	c.succeed(k)
	return e, source, nil
}

// learn compares a full answer with the known ids of its beginning.
func (c *completer) learn(ctx context.Context, req Request, m *model, k *known, e *entry) {
	broke, position := m.learned.observe(k, e.ids)
	if !broke {
		return
	}
	c.metrics.Broken.Add(ctx, 1)
	c.log.Warn("a chat template renders older messages differently: this kind of turn is tokenized in full",
		slog.String("model", m.name), slog.Int("position", position), slog.Int("known", k.stable))
}

// succeed releases the beginning before k when nothing but this conversation came from it: a
// conversation keeps its last two turns.
func (c *completer) succeed(k *known) {
	k.entry.children.Add(1)
	if k.entry.prev == (cache.Key{}) {
		return
	}
	if before := c.mem.prompts.Get(k.entry.prev); before != nil && !before.root && before.children.Load() <= 1 {
		c.mem.prompts.Delete(k.entry.prev)
	}
}

// tryDelta compares a delta with a full answer, in the background, to learn.
func (c *completer) tryDelta(ctx context.Context, req Request, m *model, key cache.Key, k *known, full *entry) {
	c.background.behind(ctx, c.mem.keyer.mix(key, cache.Key{Hi: 2}), func(ctx context.Context) (*entry, Source, error) {
		e, err := c.delta(ctx, req, m, k)
		switch {
		case err == nil:
			c.judgeDelta(ctx, m, k, slices.Equal(e.ids, full.ids))
		case errors.Is(err, errNoDelta):
			m.learned.noDelta(k)
		}
		return e, SourceConversation, err
	})
}

// verify compares an entry joined from a delta with a full answer, in the background.
func (c *completer) verify(ctx context.Context, req Request, m *model, key cache.Key, k *known, joined *entry) {
	c.background.behind(ctx, c.mem.keyer.mix(key, cache.Key{Hi: 3}), func(ctx context.Context) (*entry, Source, error) {
		e, source, err := c.full(ctx, req, m, key, k)
		if err == nil {
			c.learn(ctx, req, m, k, e)
			c.judgeDelta(ctx, m, k, slices.Equal(e.ids, joined.ids))
		}
		return e, source, err
	})
}

func (c *completer) judgeDelta(ctx context.Context, m *model, k *known, equal bool) {
	m.learned.compared(k, equal)
	if !equal {
		c.metrics.Broken.Add(ctx, 1)
		c.log.Warn("a part of a conversation is rendered differently than in the whole: this kind of turn is tokenized in full",
			slog.String("model", m.name))
	}
}

// full asks a replica for all ids and remembers them; k is the known beginning or nil.
func (c *completer) full(ctx context.Context, req Request, m *model, key cache.Key, k *known) (*entry, Source, error) {
	pr := req.Prompt
	job := m.job(pr)
	job.Native = req.native
	if job.Native == pr {
		job.Prompt = nil
	}
	a, err := c.asker.ask(ctx, req, job)
	if err != nil {
		return nil, "", err
	}
	e := newEntry(a.IDs[0])
	e.media, e.maxLen, e.rendered = a.Media, a.MaxLen, a.Rendered
	if pr.Kind == prompt.KindBatch {
		if e.batch, err = c.asker.batch(ctx, req, a); err != nil {
			return nil, "", err
		}
	}
	m.learnRatio(len(pr.Text)+messagesSize(pr), len(e.ids))
	if err := truncate(pr, e); err != nil {
		return nil, "", err
	}
	if k != nil {
		e.inherit(k.entry, parity.CommonPrefix(k.entry.ids, e.ids))
		e.prev = k.key
	}
	source := SourceTokenize
	if a.Rendered {
		source = SourceRender
	}
	if cacheable(pr) {
		c.mem.prompts.Put(key, e, e.bytes())
	}
	return e, source, nil
}
