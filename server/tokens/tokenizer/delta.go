package tokenizer

import (
	"context"
	"errors"
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/parity"
)

// errNoDelta says that a prompt cannot be joined from a known beginning and a delta.
var errNoDelta = errors.New("the prompt cannot be joined from its beginning and a delta")

// Stand-ins take the place of the known messages in a delta: they have the structure of the
// last ones, so that the template treats the rest in the same way, and next to no text.
const (
	standInUser   = `{"role":"user","content":"x"}`
	standInCaller = `{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"f","arguments":"{}"}}]}`
	standInResult = `{"role":"tool","tool_call_id":"call_0","content":"x"}`
	standInTools  = `[{"type":"function","function":{"name":"f","description":"x","parameters":{"type":"object","properties":{}}}}]`
)

// anchor returns the stand-ins for messages, or nil when there are none for their structure.
func anchor(messages [][]byte) [][]byte {
	var list [][]byte
	switch role := shapeOf(messages[0]).role; role {
	case "system", "developer":
		list = append(list, []byte(`{"role":"`+role+`","content":"x"}`))
	}
	switch shapeOf(messages[len(messages)-1]).role {
	case "user":
		return append(list, []byte(standInUser))
	case "tool":
		return append(list, []byte(standInUser), []byte(standInCaller), []byte(standInResult))
	}
	return nil
}

// excerpt is a chat of other messages under the same fields, tools shortened to a stand-in.
func excerpt(pr *prompt.Prompt, messages [][]byte) *prompt.Prompt {
	short := excerptOf(pr, messages)
	short.Fields = slices.Clone(pr.Fields)
	for i, f := range short.Fields {
		if f.Name == "tools" && !rawjson.IsNull(f.Value) {
			short.Fields[i].Value = []byte(standInTools)
		}
	}
	return short
}

// delta asks a replica for the new messages only, behind stand-ins for the known ones, and
// joins the answer to the known ids. The join is at a place that both share: the end of the
// known ids equals the end of the stand-ins' ids, and the answer keeps at least its first token.
func (c *completer) delta(ctx context.Context, req Request, m *model, k *known) (*entry, error) {
	pr := req.Prompt
	stand := anchor(pr.Messages[:k.count])
	if stand == nil {
		return nil, errNoDelta
	}
	front, err := c.anchorIDs(ctx, req, m, excerpt(pr, stand))
	if err != nil {
		return nil, err
	}
	added := excerpt(pr, append(slices.Clip(stand), pr.Messages[k.count:]...))
	a, err := c.asker.ask(ctx, req, m.job(added))
	if err != nil {
		return nil, err
	}
	both, old := a.IDs[0], k.entry.ids
	shared := commonSuffix(front, old)
	cut := len(front) - shared
	if shared == 0 || parity.CommonPrefix(front, both) <= cut {
		return nil, errNoDelta
	}
	kept := len(old) - shared
	ids := make([]uint32, 0, kept+len(both)-cut)
	ids = append(append(ids, old[:kept]...), both[cut:]...)
	e := newEntry(ids)
	e.derived, e.steps, e.epoch, e.prev = true, k.steps, m.learned.now(), k.key
	e.maxLen, e.rendered = k.entry.maxLen, a.Rendered
	e.inherit(k.entry, kept)
	return e, nil
}

// anchorIDs encodes stand-ins; they are few, so they are nearly always in the cache.
func (c *completer) anchorIDs(ctx context.Context, req Request, m *model, stand *prompt.Prompt) ([]uint32, error) {
	key := c.mem.keyer.of(stand, req.Replicas, m.generation.Load(), nil).exact
	if e := c.mem.prompts.Get(key); e != nil {
		return e.ids, nil
	}
	sub := req
	sub.Prompt = stand
	e, _, _, err := c.background.flights.wait(ctx, key, func(ctx context.Context) (*entry, Source, error) {
		return c.full(ctx, sub, m, key, nil)
	})
	if err != nil {
		return nil, err
	}
	return e.ids, nil
}

func commonSuffix(a, b []uint32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[len(a)-1-i] != b[len(b)-1-i] {
			return i
		}
	}
	return n
}
