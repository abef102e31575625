package enginesim

import "net/http"

// transcribe answers audio requests: the text depends on the bytes.
func (l *life) transcribe(c *call) {
	if err := c.r.ParseMultipartForm(64 << 20); err != nil {
		l.fail(c, missingField("file"))
		return
	}
	defer func() { _ = c.r.MultipartForm.RemoveAll() }() // temporary files of a request that has ended
	file, header, err := c.r.FormFile("file")
	if err != nil {
		l.fail(c, missingField("file"))
		return
	}
	defer file.Close()
	s := sampling{Model: c.r.FormValue("model"), Stream: c.r.FormValue("stream") == "true"}
	if bad := l.known(&s.Model); bad != nil {
		l.fail(c, *bad)
		return
	}
	// About 50 tokens of audio context for each second of 16 kHz sound, as Whisper has.
	ids := make([]uint32, max(1, min(1500, int(header.Size/640))))
	limit := 24
	s.MaxTokens = &limit
	l.answer(c, &s, "trsc-", []promptIDs{{ids: ids}}, func(g *generation) bool {
		if s.Stream {
			return g.transcript()
		}
		if !g.finished() {
			return false
		}
		said := string(g.choices[0].text)
		if c.r.FormValue("response_format") == "text" {
			c.send(http.StatusOK, "text/plain; charset=utf-8", []byte(said))
			return true
		}
		c.reply(http.StatusOK, map[string]any{"text": said, "usage": map[string]any{"type": "duration", "seconds": header.Size/32000 + 1}})
		return true
	})
}

func (g *generation) transcript() bool {
	prefix := g.chunkPrefix("transcription.chunk")
	s, ok := g.stream(func(*stream) {}, func(s *stream, ch *choice, d delta) {
		b := append(s.begin(""), prefix...).raw(`{"delta":{"content":`).str(d.text).raw(`},"finish_reason":`).strOrNull(ch.finish)
		s.end(b.raw(`,"stop_reason":null}]}`))
	})
	if ok {
		s.done()
	}
	return ok
}
