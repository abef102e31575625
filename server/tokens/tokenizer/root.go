package tokenizer

import (
	"bytes"
	"context"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/kit/cache"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/parity"
)

// A root is the common beginning of many conversations: tools and a system message. Its ids are the ids that the rendering
// of a prompt shares with the rendering of the same prompt with another
// first user message, so they end where the user's text begins.

// rootBytes is the least that a root must hold to be worth a call of its own.
const rootBytes = 2 << 10

// rooted reports whether the prompt begins with a system message and a user's text, and is
// large enough up to there.
func rooted(pr *prompt.Prompt) bool {
	if len(pr.Messages) < 2 || len(pr.Messages[0])+len(pr.Field("tools")) < rootBytes {
		return false
	}
	if role := shapeOf(pr.Messages[0]).role; role != "system" && role != "developer" {
		return false
	}
	text := rawjson.Member(pr.Messages[1], "content")
	return string(rawjson.Member(pr.Messages[1], "role")) == `"user"` && len(text) > 2 && text[0] == '"'
}

// newRoot makes the entry of a root; without ids it only marks that a prompt began with it.
func newRoot(ids []uint32, maxLen int) *entry {
	root := newEntry(ids)
	root.maxLen, root.root = maxLen, true
	return root
}

// recallRoot finds the known root of the prompt, or nil.
func (c *completer) recallRoot(pr *prompt.Prompt, ks keys, m *model) *known {
	if !rooted(pr) {
		return nil
	}
	key := c.mem.keyer.root(ks)
	e := c.mem.prompts.Get(key)
	if e == nil || len(e.ids) == 0 {
		return nil
	}
	k := &known{entry: e, key: key, count: 1, steps: stepsOf(pr, 1)}
	k.stable, _ = m.learned.judge(e, k.steps)
	return k
}

// sprout makes a root from a prompt that was encoded in full, when it is the second one to
// begin with it.
func (c *completer) sprout(ctx context.Context, req Request, m *model, ks keys, full *entry) {
	pr := req.Prompt
	if !c.conversational(pr) || !rooted(pr) {
		return
	}
	key := c.mem.keyer.root(ks)
	mark := c.mem.prompts.Get(key)
	if mark == nil {
		c.mem.prompts.Put(key, newRoot(nil, 0), 0)
		return
	}
	if len(mark.ids) > 0 || mark.children.Add(1) > 1 {
		return
	}
	other := excerptOf(pr, [][]byte{pr.Messages[0], standInUnlike(pr.Messages[1])})
	sub := req
	sub.Prompt = other
	c.background.behind(ctx, c.mem.keyer.mix(key, cache.Key{Hi: 6}), func(ctx context.Context) (*entry, Source, error) {
		e, source, err := c.full(ctx, sub, m, c.mem.keyer.of(other, req.Replicas, m.generation.Load(), nil).exact, nil)
		if err != nil {
			mark.children.Store(0)
			return nil, "", err
		}
		if n := parity.CommonPrefix(e.ids, full.ids); n > margin {
			root := newRoot(full.ids[:n:n], full.maxLen)
			c.mem.prompts.Put(key, root, root.bytes())
		}
		return e, source, nil
	})
}

// standInUnlike is a user's message that begins with another letter than the given one.
func standInUnlike(message []byte) []byte {
	if bytes.HasPrefix(rawjson.Member(message, "content"), []byte(`"x`)) {
		return []byte(`{"role":"user","content":"0"}`)
	}
	return []byte(standInUser)
}

// excerptOf is a chat of other messages under the same fields.
func excerptOf(pr *prompt.Prompt, messages [][]byte) *prompt.Prompt {
	other := *pr
	other.API, other.Body, other.Digest, other.Messages = prompt.APIChat, nil, prompt.Digest{}, messages
	return &other
}
