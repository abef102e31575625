package tokenizer

import (
	"encoding/binary"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/kit/cache"
)

// memory is the recent encodings, and the keys that lead to it. It is safe for concurrent use.
type memory struct {
	keyer   keyer
	prompts *cache.Cache[entry]
	bodies  *cache.Cache[cache.Key] // from the key of a body to the key of its prompt
	texts   *cache.Cache[string]    // of ids
}

// lookup gets an entry that is still believed.
func (mem *memory) lookup(key cache.Key, m *model) *entry {
	e := mem.prompts.Get(key)
	if e == nil || !e.derived {
		return e
	}
	m.learned.mu.Lock()
	current := e.epoch == m.learned.epoch
	m.learned.mu.Unlock()
	if !current {
		mem.prompts.Delete(key)
		return nil
	}
	return e
}

// bodyKey names the body that a prompt came in, with all else that may change its ids; zero when the
// body is not known by a digest.
func (mem *memory) bodyKey(req Request, m *model) cache.Key {
	pr := req.Prompt
	if pr.Digest == (prompt.Digest{}) || pr.Partial {
		return cache.Key{}
	}
	var buf [256]byte
	b := binary.AppendUvarint(buf[:0], m.generation.Load())
	for _, s := range [...]string{pr.Model, rootOf(pr.Model, req.Replicas)} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return mem.keyer.mix(cache.Key(pr.Digest), mem.keyer.sum(b))
}

// recallBody finds the encoding of a prompt by the body that it came in, or nil.
func (mem *memory) recallBody(body cache.Key, req Request, m *model) *entry {
	if body == (cache.Key{}) {
		return nil
	}
	exact := mem.bodies.Get(body)
	if exact == nil {
		return nil
	}
	if e := mem.lookup(*exact, m); e != nil && (!e.derived || !req.NeedFull) {
		return e
	}
	return nil
}
