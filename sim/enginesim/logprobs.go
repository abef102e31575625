package enginesim

import "github.com/kvpilot/kvpilot/sim/enginesim/vocab"

// logprob makes up the log probability of a token of rank k: plausible, and the same each time.
func logprob(id uint32, k int) float64 {
	x := uint64(id)*0x9e3779b97f4a7c15 + uint64(k)
	x ^= x >> 31
	return -float64(k)*1.5 - float64(x%1000)/1000 - 0.01
}

// rival is the token of rank k next to the chosen one, which has rank 0.
func rival(id uint32, k int) uint32 {
	if k == 0 {
		return id
	}
	return 512 + (id+uint32(k)*7919)%(vocab.Size-512)
}

// safe replaces bytes that are not UTF-8.
func safe[T []byte | string](raw T) string { return string([]rune(string(raw))) }

func tokenText(id uint32) string { return safe(vocab.Decode(nil, []uint32{id}, false)) }

// chatLogprob leaves the object open.
func (b text) chatLogprob(id uint32, k int) text {
	raw := vocab.Decode(nil, []uint32{id}, false)
	b = b.raw(`{"token":`).str(safe(raw)).raw(`,"logprob":`).float(logprob(id, k)).raw(`,"bytes":`)
	return b.list(len(raw), '[', ']', func(b text, i int) text { return b.int(int(raw[i])) })
}

// chatLogprobs appends the chat form for ids, each with the top rivals.
func (b text) chatLogprobs(asked bool, ids []uint32, top int) text {
	if !asked {
		return b.raw("null")
	}
	return b.raw(`{"content":`).list(len(ids), '[', ']', func(b text, i int) text {
		b = b.chatLogprob(ids[i], 0).raw(`,"top_logprobs":`)
		return b.list(top, '[', ']', func(b text, k int) text { return b.chatLogprob(rival(ids[i], k), k).raw("}") }).raw("}")
	}).raw("}")
}

// logprobs appends the completions form for ids, null unless top is set; offset is where their text begins, and the
// first skip ids, of the prompt, have none.
func (b text) logprobs(top *int, ids []uint32, offset, skip int) text {
	if top == nil {
		return b.raw("null")
	}
	list := func(b text, each func(b text, id uint32) text) text {
		return b.list(len(ids), '[', ']', func(b text, i int) text { return each(b, ids[i]) })
	}
	known := func(b text, each func(b text, id uint32) text) text {
		return b.list(len(ids), '[', ']', func(b text, i int) text {
			if i < skip {
				return b.raw("null")
			}
			return each(b, ids[i])
		})
	}
	b = list(b.raw(`{"text_offset":`), func(b text, id uint32) text {
		b = b.int(offset)
		offset += len([]rune(tokenText(id)))
		return b
	})
	b = known(b.raw(`,"token_logprobs":`), func(b text, id uint32) text { return b.float(logprob(id, 0)) })
	b = list(b.raw(`,"tokens":`), func(b text, id uint32) text { return b.str(tokenText(id)) })
	b = known(b.raw(`,"top_logprobs":`), func(b text, id uint32) text {
		return b.list(max(1, *top), '{', '}', func(b text, k int) text {
			r := rival(id, k)
			return b.str(tokenText(r)).raw(":").float(logprob(r, k))
		})
	})
	return b.raw("}")
}
