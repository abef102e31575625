package tokenizer

import (
	"bytes"
	"strconv"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote"
)

// truncate applies truncate_prompt_tokens to ids from /tokenize, which does not know it; a
// rendered answer is truncated already.
func truncate(pr *prompt.Prompt, e *entry) error {
	if pr.Truncate == 0 || e.rendered {
		return nil
	}
	limit := pr.Truncate
	if limit < 0 {
		out := outputLimit(pr.Body)
		switch {
		case e.maxLen > 0 && out > 0:
			limit = e.maxLen - out
		case e.maxLen > 0 && len(e.ids) < e.maxLen/2:
			return nil // far from the limit with any output
		default:
			return &remote.Fault{Kind: remote.KindUnmappable}
		}
	}
	if limit <= 0 {
		return &remote.Fault{Kind: remote.KindUnmappable}
	}
	e.settle(keep(e.ids, limit, pr))
	for i, ids := range e.batch {
		e.batch[i] = keep(ids, limit, pr)
	}
	return nil
}

// untouched reports whether prompts of at most longest tokens are never cut to the context.
func untouched(pr *prompt.Prompt, longest, maxLen int) bool {
	return pr.Truncate == 0 || pr.Truncate < 0 && maxLen > 0 && longest < maxLen/2
}

// lengths are the length of the longest prompt and of all.
func (e *entry) lengths() (longest, total int) {
	if e.batch == nil {
		return len(e.ids), len(e.ids)
	}
	for _, ids := range e.batch {
		longest, total = max(longest, len(ids)), total+len(ids)
	}
	return longest, total
}

// contextOf is the model's context where all replicas that report one agree, else 0.
func contextOf(req Request) int {
	length := 0
	for _, r := range req.Replicas {
		m, ok := r.Serves(req.Prompt.Model)
		if ok && m.MaxLen == 0 && m.Parent != "" {
			m, _ = r.Serves(m.Parent)
		}
		if length > 0 && m.MaxLen > 0 && m.MaxLen != length {
			return 0
		}
		length = max(length, m.MaxLen)
	}
	return length
}

// keep cuts ids to n at the side that the request names; the engine's default is the left.
func keep(ids []uint32, n int, pr *prompt.Prompt) []uint32 {
	if len(ids) <= n {
		return ids
	}
	if string(pr.Field("truncation_side")) == `"right"` {
		return ids[:n:n]
	}
	return ids[len(ids)-n:]
}

// outputLimit reads the output limit from a body, 0 when it sets none.
func outputLimit(body []byte) int {
	for _, name := range []string{"max_completion_tokens", "max_tokens", "max_output_tokens"} {
		if n, err := strconv.Atoi(string(rawjson.Member(body, name))); err == nil && n > 0 {
			return n
		}
	}
	return 0
}

// cacheable reports whether the same body means the same ids later: media behind a URL may change.
func cacheable(pr *prompt.Prompt) bool {
	if !pr.HasMedia {
		return true
	}
	for _, m := range pr.Messages {
		if bytes.Contains(m, []byte("http:")) || bytes.Contains(m, []byte("https:")) || bytes.Contains(m, []byte("file:")) {
			return false
		}
	}
	return true
}
