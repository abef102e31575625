package router

import (
	"bytes"
	"context"
	"strconv"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/sse"
)

// The results of answers without a token, as metrics distinguish them.
const (
	// emptyRetried: another replica gave an answer, so that it counts against this one.
	emptyRetried = "retried"
	// emptyAgreed: another replica gave none either, so that it is the request's doing. The client gets it.
	emptyAgreed = "agreed"
	// emptyPassed: no other replica could be asked, or none answered. The client gets it.
	emptyPassed = "passed"
)

func emptyResults() []string { return []string{emptyRetried, emptyAgreed, emptyPassed} }

// opening is the beginning of an answer, which is kept from the client while nothing is in it. The zero value keeps nothing.
type opening struct {
	// waits is set while another replica could be asked instead, and no content has come.
	waits    bool
	streamed bool
	api      prompt.API
	choices  int
	scan     sse.Scanner
	kept     []byte
	// whole is set once the stream has said that it is complete, empty once an answer is known to be.
	whole, empty bool
	// arrival is the beginning of a stream that is decoded from another replica's cache.
	arrival arrival
}

// maxOpening bounds the bytes without content that are kept.
const maxOpening = 64 << 10

// open prepares d for the answer of the attempt under way.
func (d *delivery) open(rq *request, t *tries, streamed bool) {
	d.opening = opening{streamed: streamed, api: rq.parsed.Prompt.API, choices: max(1, rq.parsed.N)}
	d.opening.waits = t.blank == nil && t.point == nil && rq.call.Route.Generates() && rq.parsed.Prompt.API != prompt.APIOther &&
		rq.upload == nil && rq.holder == "" && rq.call.Options.Pinned == "" && t.ask.Attempt+1 < rq.set.attempts &&
		d.attempt.choice.Decision.HasOtherReplica()
	if streamed && d.attempt.isSplit() {
		d.opening.arrival.begin(d.opening.api)
	}
	if d.opening.waits {
		d.opening.scan.Reset(d.opening.api, streamed)
	}
}

// take returns what of the answer can go to the client, now that piece has come: nothing while there is no content.
func (o *opening) take(piece []byte) []byte {
	if piece = o.arrival.take(piece); piece == nil {
		return nil
	}
	switch {
	case !o.streamed:
		o.empty = emptyObject(o.api, piece)
		if o.waits && o.empty {
			o.kept = append(o.kept, piece...)
			return nil
		}
		return piece
	case !o.waits, len(piece) == 0:
		return piece
	case len(o.kept) == 0 && plain(piece): // as nearly always
		o.waits = false
		return piece
	}
	o.kept = append(o.kept, piece...)
	o.scan.Feed(piece)
	o.whole = o.scan.Done()
	switch {
	case o.whole && !o.scan.Failed() && emptyStream(&o.scan, o.api, o.choices, o.kept):
		o.empty = true
		return nil
	case o.whole, o.scan.Failed(), o.scan.ContentEvents() > 0, len(o.kept) > maxOpening:
		o.waits = false
		return o.kept
	}
	return nil
}

// missing reports whether the answer, which has ended or says that it is complete, has nothing in it and was kept from the client.
func (o *opening) missing() bool { return o.waits && (o.empty || !o.whole) }

// plain reports whether a piece begins with an event that has an object, or with what is no data at all, and is not all of a stream.
func plain(piece []byte) bool {
	rest, data := bytes.CutPrefix(piece, []byte("data:"))
	if data {
		rest = bytes.TrimLeft(rest, " ")
		data = len(rest) > 0 && rest[0] == '{'
	}
	other := bytes.HasPrefix(piece, []byte("event:")) || piece[0] == ':'
	return (data || other) && !bytes.HasSuffix(bytes.TrimRight(piece[max(0, len(piece)-16):], "\r\n"), []byte("[DONE]"))
}

// emptyStream reports whether a complete stream has no token: no event with content, or only those that begin the choices of a chat.
func emptyStream(scan *sse.Scanner, api prompt.API, choices int, all []byte) bool {
	if u, ok := scan.Usage(); ok && u.CompletionTokens > 0 {
		return false
	}
	switch {
	case scan.ContentEvents() == 0:
		return true
	case api != prompt.APIChat || scan.Finished() > 0 || scan.ContentEvents() > choices:
		return false
	}
	return !hasText(all)
}

// emptyObject reports whether an answer in one piece has nothing in it, or an empty list of choices.
func emptyObject(api prompt.API, body []byte) bool {
	if len(bytes.TrimSpace(body)) == 0 {
		return true
	}
	if api != prompt.APIChat && api != prompt.APICompletions || len(body) > maxOpening {
		return false
	}
	_, rest, found := bytes.Cut(body, []byte(`"choices"`))
	if !found {
		return false
	}
	rest = bytes.TrimLeft(rest, " \t\r\n:")
	return len(rest) > 0 && rest[0] == '[' && bytes.HasPrefix(bytes.TrimLeft(rest[1:], " \t\r\n"), []byte("]"))
}

// hasText reports whether a member that carries what was generated has a value that is not empty.
func hasText(b []byte) bool {
	for _, name := range [...]string{`"content"`, `"text"`, `"reasoning_content"`, `"reasoning"`, `"refusal"`, `"tool_calls"`, `"function_call"`, `"audio"`} {
		for rest := b; ; {
			_, after, found := bytes.Cut(rest, []byte(name))
			if !found {
				break
			}
			rest = after
			value := bytes.TrimLeft(after, " \t\r\n:")
			if len(value) < 2 || bytes.HasPrefix(value, []byte("null")) {
				continue
			}
			if next := bytes.TrimLeft(value[1:], " \t\r\n"); value[0] == '"' && value[1] != '"' || (value[0] == '[' || value[0] == '{') && len(next) > 0 && next[0] != ']' && next[0] != '}' {
				return true
			}
		}
	}
	return false
}

// withhold keeps the answer under way, which has nothing in it, and has another replica asked.
func withhold(t *tries, d *delivery) *failure {
	a := d.attempt
	t.blank = &blank{choice: a.choice, status: a.resp.Status, header: a.resp.Header, body: d.opening.kept}
	return &failure{outcome: retry.Empty, public: apierror.New(apierror.UpstreamError, "the replica's answer was empty", nil)}
}

// blanks judges answers without a token, and gives the client one where no other replica gave a better one.
type blanks struct {
	empties *instruments.Keyed[string]
	limits  *limits
}

// compared judges an answer without a token by what another replica gave for the same request.
func (b *blanks) compared(t *tries, d *delivery) {
	if t.blank == nil {
		return
	}
	o := &d.opening
	if o.streamed && (d.scan.Failed() || emptyStream(&d.scan, o.api, o.choices, nil)) || !o.streamed && o.empty {
		b.empties.Add(emptyAgreed)
		return
	}
	t.blank.choice.Emptied()
	b.empties.Add(emptyRetried)
}

// give gives the client the answer without a token that no other replica could better. It reports false when there is none.
func (b *blanks) give(ctx context.Context, rq *request, t *tries, d *delivery) (given bool, err error) {
	kept := t.blank
	if kept == nil || d.begun || ctx.Err() != nil {
		return false, nil
	}
	b.empties.Add(emptyPassed)
	d.begun, d.status = true, kept.status
	rq.explain(&attempt{choice: kept.choice}, kept.header)
	b.limits.explain(rq, kept.header)
	kept.header.Set("Content-Length", strconv.Itoa(len(kept.body)))
	if err = d.to.Begin(kept.status, kept.header); err == nil && len(kept.body) > 0 {
		err = d.to.Write(kept.body)
	}
	if err != nil {
		err = gone(err)
	}
	return true, err
}
