package enginesim

// usage is a request's token counts; its JSON differs between versions, routes and streams.
type usage struct {
	prompt, completion int
	cached, created    int
	chat               bool
}

func (g *generation) usage(chat bool) usage {
	return usage{prompt: g.promptTokens, completion: g.outputTokens(), cached: g.cached(), created: g.createdCache(), chat: chat}
}

func (u usage) counts(b text) text {
	return b.raw(`{"prompt_tokens":`).int(u.prompt).raw(`,"total_tokens":`).int(u.prompt + u.completion).raw(`,"completion_tokens":`).int(u.completion)
}

// running is the usage of a chunk (continuous_usage_stats).
func (u usage) running(b text, d *dialect) text {
	b = u.counts(b)
	if d.features.has(modern) {
		b = b.raw(`,"completion_tokens_details":null`)
	}
	return b.raw("}")
}

// final is the usage of a stream's last chunk: no details when there are none.
func (u usage) final(b text, d *dialect) text {
	b = u.counts(b)
	if d.reportsCache(u.cached) {
		b = b.raw(`,"prompt_tokens_details":{"cached_tokens":`).int(u.cached)
		if d.features.has(modern) && u.chat {
			b = b.raw(`,"created_cache_tokens":`).int(u.created)
		}
		b = b.raw("}")
	}
	return b.raw("}")
}

// whole is the usage of an answer that is not streamed: everything is there, null if empty.
func (u usage) whole(b text, d *dialect) text {
	b = u.counts(b).raw(`,"prompt_tokens_details":`)
	switch {
	case !d.reportsCache(u.cached):
		b = b.raw("null")
	case d.features.has(modern):
		b = b.raw(`{"cached_tokens":`).int(u.cached).raw(`,"created_cache_tokens":`)
		if u.chat {
			b = b.int(u.created)
		} else {
			b = b.raw("null")
		}
		b = b.raw(`,"multimodal_tokens":null}`)
	default:
		b = b.raw(`{"cached_tokens":`).int(u.cached).raw("}")
	}
	if d.features.has(modern) {
		b = b.raw(`,"completion_tokens_details":null`)
	}
	return b.raw("}")
}

// reportsCache reports whether usage has details: from 0.32 on also for a miss.
func (d *dialect) reportsCache(cached int) bool {
	return d.cfg.TokenDetails && (cached > 0 || d.features.has(missIsZero))
}
