package enginesim

import (
	"math"
	"strconv"

	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// logprob makes up the log probability of a token of rank k: plausible, and the same each time.
func logprob(id uint32, k int) float64 {
	x := uint64(id)*0x9e3779b97f4a7c15 + uint64(k)
	x ^= x >> 31
	return -float64(k)*1.5 - float64(x%1000)/1000 - 0.01
}

// rival is the token of rank k beside the chosen one, which has rank 0.
func rival(id uint32, k int) uint32 {
	if k == 0 {
		return id
	}
	return 512 + (id+uint32(k)*7919)%(vocab.Size-512)
}

func appendFloat(b []byte, f float64) []byte {
	return strconv.AppendFloat(b, math.Round(f*1e6)/1e6, 'f', -1, 64)
}

// appendChatLogprob leaves the object open.
func appendChatLogprob(b []byte, id uint32, k int) []byte {
	raw := vocab.Decode(nil, []uint32{id}, false)
	b = append(b, `{"token":`...)
	b = quote(b, safe(raw))
	b = append(b, `,"logprob":`...)
	b = appendFloat(b, logprob(id, k))
	b = append(b, `,"bytes":[`...)
	for i, c := range raw {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(c), 10)
	}
	return append(b, ']')
}

// safe replaces what is not UTF-8.
func safe[text []byte | string](raw text) string {
	return string([]rune(string(raw)))
}

// appendLogprobs writes the completions form for ids; offset is where their text begins. The
// first prompt token has none.
func appendLogprobs(b []byte, ids []uint32, top, offset, skip int) []byte {
	var offsets, probs, tokens, tops []byte
	for i, id := range ids {
		if i > 0 {
			offsets, probs, tokens, tops = append(offsets, ','), append(probs, ','), append(tokens, ','), append(tops, ',')
		}
		text := safe(vocab.Decode(nil, []uint32{id}, false))
		offsets = strconv.AppendInt(offsets, int64(offset), 10)
		offset += len([]rune(text))
		tokens = quote(tokens, text)
		if i < skip {
			probs, tops = append(probs, "null"...), append(tops, "null"...)
			continue
		}
		probs = appendFloat(probs, logprob(id, 0))
		tops = append(tops, '{')
		for k := range max(1, top) {
			if k > 0 {
				tops = append(tops, ',')
			}
			r := rival(id, k)
			tops = quote(tops, safe(vocab.Decode(nil, []uint32{r}, false)))
			tops = appendFloat(append(tops, ':'), logprob(r, k))
		}
		tops = append(tops, '}')
	}
	b = append(append(b, `{"text_offset":[`...), offsets...)
	b = append(append(b, `],"token_logprobs":[`...), probs...)
	b = append(append(b, `],"tokens":[`...), tokens...)
	b = append(append(b, `],"top_logprobs":[`...), tops...)
	return append(b, `]}`...)
}
