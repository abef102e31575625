package enginesim

import "strconv"

// usage is a request's token counts; its JSON differs between versions, routes and streams.
type usage struct {
	prompt, completion int
	cached, created    int
	chat               bool
}

func (g *generation) usage(chat bool) usage {
	return usage{prompt: g.promptTokens, completion: g.outputTokens(), cached: g.cached(), created: g.createdCache(), chat: chat}
}

func (u usage) counts(b []byte) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(u.prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(u.prompt+u.completion), 10)
	b = append(b, `,"completion_tokens":`...)
	return strconv.AppendInt(b, int64(u.completion), 10)
}

// running is the usage of a chunk (continuous_usage_stats).
func (u usage) running(b []byte, l *life) []byte {
	b = u.counts(b)
	if l.features.modern {
		b = append(b, `,"completion_tokens_details":null`...)
	}
	return append(b, '}')
}

// final is the usage of a stream's last chunk: no details when there are none.
func (u usage) final(b []byte, l *life) []byte {
	b = u.counts(b)
	if l.reportsCache(u.cached) {
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
		b = strconv.AppendInt(b, int64(u.cached), 10)
		if l.features.modern && u.chat {
			b = append(b, `,"created_cache_tokens":`...)
			b = strconv.AppendInt(b, int64(u.created), 10)
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

// whole is the usage of an answer that is not streamed: everything is there, null if empty.
func (u usage) whole(b []byte, l *life) []byte {
	b = append(u.counts(b), `,"prompt_tokens_details":`...)
	switch {
	case !l.reportsCache(u.cached):
		b = append(b, "null"...)
	case l.features.modern:
		b = append(b, `{"cached_tokens":`...)
		b = strconv.AppendInt(b, int64(u.cached), 10)
		b = append(b, `,"created_cache_tokens":`...)
		if u.chat {
			b = strconv.AppendInt(b, int64(u.created), 10)
		} else {
			b = append(b, "null"...)
		}
		b = append(b, `,"multimodal_tokens":null}`...)
	default:
		b = append(b, `{"cached_tokens":`...)
		b = strconv.AppendInt(b, int64(u.cached), 10)
		b = append(b, '}')
	}
	if l.features.modern {
		b = append(b, `,"completion_tokens_details":null`...)
	}
	return append(b, '}')
}

// reportsCache tells whether usage has details: from 0.32 on also for a miss.
func (l *life) reportsCache(cached int) bool {
	return l.cfg.TokenDetails && (cached > 0 || l.features.missIsZero)
}

func appendIDs(b []byte, ids []uint32) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return append(b, ']')
}

// idsOrNull writes ids when the request asked for them.
func idsOrNull(b []byte, asked bool, ids []uint32) []byte {
	if !asked {
		return append(b, "null"...)
	}
	return appendIDs(b, ids)
}

// appendAny writes a stop reason: nil, a string or an id.
func appendAny(b []byte, v any) []byte {
	switch v := v.(type) {
	case string:
		return quote(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10)
	}
	return append(b, "null"...)
}

func reasonOrNull(b []byte, reason string) []byte {
	if reason == "" {
		return append(b, "null"...)
	}
	return quote(b, reason)
}
