package enginesim

import "net/http"

// answer generates for the prompts and has write answer the client; write is false when the answer broke off.
func (l *life) answer(c *call, s *sampling, prefix string, prompts []promptIDs, write func(*generation) bool) {
	g := l.start(c, s, prefix, prompts)
	if g == nil {
		return
	}
	ok := false
	defer func() { g.end(ok) }()
	ok = write(g)
}

// finished waits for all choices; false when the answer broke off.
func (g *generation) finished() bool { return g.each(func(*choice, delta) bool { return true }) }

// stream sends an event stream: open writes the part before the first delta, on writes each delta. It is false
// when the answer broke off.
func (g *generation) stream(open func(*stream), on func(*stream, *choice, delta)) (*stream, bool) {
	s := newStream(g.l, g.c)
	if g.c.faults.Empty {
		s.head()
		s.done()
		return s, false
	}
	started := false
	if (exchange{g}).reads() { // the head is there before the cache
		started = true
		s.head()
		_ = s.flush() // a client that left shows in its context
	}
	opened := false
	ok := g.each(func(ch *choice, d delta) bool {
		if !started {
			started = true
			s.head()
		}
		if !opened {
			opened = true
			open(s)
		}
		on(s, ch, d)
		s.send()
		return !s.ended
	})
	if g.lost.Load() {
		s.fail(errLoad.Error())
	}
	return s, ok
}

// streamed ends a stream of chunks that begin with prefix: the usage when it was asked for, and the end mark.
func (g *generation) streamed(s *stream, prefix text, chat bool) bool {
	if o := g.s.StreamOptions; o != nil && o.IncludeUsage {
		b := g.usage(chat).final(append(s.begin(""), prefix...).raw(`],"usage":`), &g.l.dialect)
		s.end(g.fingerprint(b, true).raw("}"))
	}
	s.done()
	return true
}

// whole answers without a stream: choice writes each choice, extra the part behind the usage.
func (g *generation) whole(object string, chat bool, choice func(text, *choice) text, extra func(text) text) bool {
	if !g.finished() {
		if g.lost.Load() {
			g.l.fail(g.c, apiError{Status: http.StatusInternalServerError, Message: errLoad.Error(), Type: "InternalServerError"})
		}
		return false
	}
	b := g.chunkPrefix(object)
	for i, ch := range g.choices {
		if i > 0 {
			b = b.raw(",")
		}
		b = choice(b, ch)
	}
	b = b.raw(`],"service_tier":null,"system_fingerprint":`)
	if g.l.features.has(modern) {
		b = b.str(g.build())
	} else {
		b = b.raw("null")
	}
	b = extra(g.usage(chat).whole(b.raw(`,"usage":`), &g.l.dialect)).raw(`,"kv_transfer_params":`)
	b = exchange{g}.passed(b)
	if g.l.features.has(modern) {
		b = b.raw(`,"ec_transfer_params":null,"metrics":null`)
	}
	g.c.send(http.StatusOK, "application/json", b.raw("}"))
	return true
}

// chunkPrefix is the common beginning of a stream's chunks, up to their choices.
func (g *generation) chunkPrefix(object string) text {
	return text(`{"id":`).str(g.id).raw(`,"object":"` + object + `","created":`).int(int(g.created)).raw(`,"model":`).str(g.s.Model).raw(`,"choices":[`)
}

// build is the engine's build.
func (g *generation) build() string { return "vllm-" + g.l.features.name + "-sim" }

// fingerprint names the engine's build, on last chunks only: the usage, where the client asked for it.
func (g *generation) fingerprint(b text, last bool) text {
	if last && g.l.features.has(modern) {
		b = b.raw(`,"system_fingerprint":`).str(g.build())
	}
	return b
}

// isLast reports whether the chunk that ends a choice is a last one.
func (g *generation) isLast(d delta) bool {
	o := g.s.StreamOptions
	return d.done && (o == nil || !o.IncludeUsage)
}

// versions ends a chunk's choice, transferred the chunk.
func (g *generation) versions(b text) text { return g.sinceDerender(b, `,"weight_versions":null`) }

func (g *generation) transferred(b text) text {
	return g.sinceDerender(b, `,"kv_transfer_params":null`)
}

// sinceDerender writes members that chunks have since 0.33.
func (g *generation) sinceDerender(b text, members string) text {
	if g.l.features.has(derender) {
		return b.raw(members)
	}
	return b
}

// runningUsage writes the usage so far into a chunk when it was asked for.
func (g *generation) runningUsage(b text, prompt, made int) text {
	o := g.s.StreamOptions
	if o == nil || !o.IncludeUsage || !o.Continuous {
		return b
	}
	return usage{prompt: prompt, completion: made}.running(b.raw(`,"usage":`), &g.l.dialect)
}
