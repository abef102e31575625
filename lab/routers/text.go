package main

import (
	"strconv"

	"github.com/kvpilot/kvpilot/sim/replay"
)

// A chunk of a trace becomes text of words of five letters behind a space, which are two tokens of the
// simulated replica's tokenizer each: three characters a token.

// appendText writes the tokens from start to end of a call's prompt.
func appendText(dst []byte, c *replay.Call, chunk, start, end int) []byte {
	for at := start; at < end; {
		id := uint64(at) // a prompt longer than its ids: nothing shares the rest
		if n := at / chunk; n < len(c.IDs) {
			id = c.IDs[n]
		} else {
			id += uint64(c.Session)<<32 + 1<<63
		}
		from, to := at%chunk, min(chunk, at%chunk+end-at)
		for k := from; k < to; k++ {
			r := mix(id*1_000_003 + uint64(k))
			if k%2 == 0 {
				dst = append(dst, ' ', letter(r), letter(r>>16))
			} else {
				dst = append(dst, letter(r), letter(r>>16), letter(r>>32))
			}
		}
		at += to - from
	}
	return dst
}

func letter(r uint64) byte { return 'a' + byte(r&0xffff*26>>16) }

// mix spreads the bits of x.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// message is a turn of a conversation; its text needs no escaping.
type message struct {
	role string
	text []byte
}

// The tokens that the chat template adds: around a system message, around a user's with the opening of
// the answer, and around a further user's with the end of the answer before it.
const (
	aroundSystem = 6
	aroundUser   = 11
	aroundTurn   = 13
)

// prompt is a call's conversation. before and answer belong to the call that it continues; nil for a
// call that begins one.
func (t *trace) prompt(i int, before []message, answer []byte) []message {
	c := &t.Calls[i]
	if before != nil {
		p := &t.Calls[t.After[i]]
		list := append(before[:len(before):len(before)], message{"assistant", answer})
		start := p.In + p.Out
		return append(list, message{"user", appendText(nil, c, t.Chunk, start, max(start+1, c.In-aroundTurn))})
	}
	var list []message
	start := 0
	if t.System > 0 {
		start = max(1+aroundSystem, min(t.System, c.In-aroundUser-1)) // whole wherever it fits, since all share it
		list = append(list, message{"system", appendText(nil, c, t.Chunk, 0, start-aroundSystem)})
	}
	return append(list, message{"user", appendText(nil, c, t.Chunk, start, max(start+1, c.In-aroundUser))})
}

// model is the replicas' model.
const model = "sim"

// body is the request for a conversation.
func body(api string, list []message, out int, stream bool) []byte {
	size := 256
	for _, m := range list {
		size += len(m.text) + 40
	}
	b := make([]byte, 0, size)
	b = append(b, `{"model":"`+model+`",`...)
	if stream {
		b = append(b, `"stream":true,"stream_options":{"include_usage":true},`...)
	}
	b = append(b, `"ignore_eos":true,"temperature":0,"max_tokens":`...)
	b = strconv.AppendInt(b, int64(out), 10)
	if api != "chat" {
		b = append(b, `,"prompt":"`...)
		for _, m := range list {
			b = appendEscaped(b, m.text)
		}
		return append(b, `"}`...)
	}
	b = append(b, `,"messages":[`...)
	for i, m := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"role":"`+m.role+`","content":"`...)
		b = appendEscaped(b, m.text)
		b = append(b, `"}`...)
	}
	return append(b, `]}`...)
}

// appendEscaped copies text; answers of the simulated replica are words and full stops, but a quote, a
// backslash or a control character of another engine's is escaped.
func appendEscaped(dst, text []byte) []byte {
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < ' ':
			dst = append(dst, `\u00`...)
			dst = append(dst, "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return dst
}
