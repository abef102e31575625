package openai

import (
	"strconv"
	"unicode/utf8"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// Logprobs reports whether the client of a completion gets the log probability of each token, in a form that can be continued: without stop
// strings, which an engine may find after it has sent the tokens.
func (r *Request) Logprobs() bool {
	raw := r.Raw("logprobs")
	if r.Prompt.API != prompt.APICompletions || len(raw) == 0 || raw[0] < '0' || raw[0] > '9' {
		return false
	}
	_, ok := exactCount(raw)
	stops, known := r.Stops()
	return ok && known && len(stops.Strings) == 0
}

// TextEnd returns where the text of the last token of a completion's logprobs ends, in characters. It is false when they are not understood.
func TextEnd(logprobs []byte) (end int, ok bool) {
	last := -1
	if !EachID(memberOf(logprobs, "text_offset"), func(n uint32) bool { last = int(n); return true }) || last < 0 {
		return 0, false
	}
	tokens := 0
	err := rawjson.Elements(memberOf(logprobs, "tokens"), func(one []byte) bool {
		if ok = len(one) > 0 && one[0] == '"'; ok {
			tokens = utf8.RuneCount(rawjson.TextOf(one).Bytes())
		}
		return ok
	})
	return last + tokens, ok && err == nil
}

// ShiftOffsets appends a completion's logprobs whose text begins base characters later.
func ShiftOffsets(dst, logprobs []byte, base int) []byte {
	at := memberAt(logprobs, "text_offset")
	if at.to == 0 {
		return append(dst, logprobs...)
	}
	dst = append(append(dst, logprobs[:at.from]...), '[')
	first := true
	EachID(logprobs[at.from:at.to], func(n uint32) bool {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = strconv.AppendInt(dst, int64(n)+int64(base), 10)
		return true
	})
	return append(append(dst, ']'), logprobs[at.to:]...)
}
