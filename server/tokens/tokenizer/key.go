package tokenizer

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/cache"
)

// keys names a prompt for the caches: by everything that may change its ids.
type keys struct {
	// base covers all but the messages or texts.
	base cache.Key
	// exact covers everything.
	exact cache.Key
	// upTo[i] covers base and the first i+1 messages (chat only).
	upTo []cache.Key
}

// keyer makes keys. Its seed is secret to the process: clients cannot prepare collisions.
type keyer struct{ seed uint64 }

func (k keyer) sum(b []byte) cache.Key {
	h := xxh3.Hash128Seed(b, k.seed)
	return cache.Key{Hi: h.Hi, Lo: h.Lo}
}

// mix continues a with b.
func (k keyer) mix(a, b cache.Key) cache.Key {
	var buf [32]byte
	binary.LittleEndian.PutUint64(buf[0:], a.Hi)
	binary.LittleEndian.PutUint64(buf[8:], a.Lo)
	binary.LittleEndian.PutUint64(buf[16:], b.Hi)
	binary.LittleEndian.PutUint64(buf[24:], b.Lo)
	return k.sum(buf[:])
}

// of computes the prompt's keys; the messages' keys are appended to upTo.
func (k keyer) of(p *prompt.Prompt, replicas []*replica.Replica, generation uint64, upTo []cache.Key) keys {
	ks := keys{base: k.base(p, replicas, generation), upTo: upTo[:0]}
	at := ks.base
	switch p.Kind {
	case prompt.KindChat:
		for _, m := range p.Messages {
			at = k.mix(at, k.sum(m))
			ks.upTo = append(ks.upTo, at)
		}
	case prompt.KindBatch:
		for _, t := range p.Texts {
			at = k.mix(at, k.sum(bytesOf(t)))
		}
	case prompt.KindText:
		at = k.mix(at, k.sum(bytesOf(p.Text)))
	case prompt.KindNone, prompt.KindIDs, prompt.KindBatchIDs:
	}
	ks.exact = k.exactOf(at, p.Kind)
	return ks
}

// exactOf turns the key of a prompt's parts into the key of a prompt that has no more.
func (k keyer) exactOf(parts cache.Key, kind prompt.Kind) cache.Key {
	return k.mix(parts, cache.Key{Hi: 1, Lo: uint64(kind)})
}

// base covers the model, its weights, and every field that may change the ids.
func (k keyer) base(p *prompt.Prompt, replicas []*replica.Replica, generation uint64) cache.Key {
	var buf [512]byte
	b := buf[:0]
	str := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	b = append(b, byte(p.Kind), byte(p.API))
	b = binary.AppendVarint(b, int64(p.Truncate))
	b = binary.AppendUvarint(b, generation)
	str(p.Model)
	str(rootOf(p.Model, replicas))
	str(p.Apart)
	for _, f := range p.Fields {
		str(f.Name)
		if len(f.Value) <= 128 {
			str(string(f.Value))
			continue
		}
		h := k.sum(f.Value)
		b = append(b, 0xff)
		b = binary.LittleEndian.AppendUint64(b, h.Hi)
		b = binary.LittleEndian.AppendUint64(b, h.Lo)
	}
	return k.sum(b)
}

// rootOf names the weights behind a model's name.
func rootOf(model string, replicas []*replica.Replica) string {
	for _, r := range replicas {
		if m, ok := r.Serves(model); ok {
			return m.Root
		}
	}
	return ""
}

// root names the root of a prompt.
func (k keyer) root(ks keys) cache.Key { return k.mix(ks.upTo[0], cache.Key{Hi: 5}) }
