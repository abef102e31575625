package router

import (
	"context"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// progressStep is how many content events are reported together: fewer than a block holds, since
// blocks are what the report is for.
const progressStep = 8

// passage is one replica's answer on its way to the client.
type passage struct {
	j        *job
	resp     *upstream.Response
	to       Sink
	streamed bool
	// earlier counts the content events that the client has of other replicas, reported those of this
	// one that the load was told of.
	earlier, reported int
	// kept is what came of an answer that is passed on as one piece; keeps says that it is such a one.
	kept  []byte
	keeps bool
}

// maxKept bounds an answer that is passed on as one piece; what is longer goes to the client as it comes.
const maxKept = 1 << 20

// keep adds a piece to those that are kept, and gives them back when there are too many.
func (p *passage) keep(piece []byte) []byte {
	if len(p.kept) == 0 && int64(len(piece)) == p.resp.ContentLength {
		return piece // the whole answer, as nearly always
	}
	if p.kept == nil && p.resp.ContentLength > 0 {
		p.kept = make([]byte, 0, p.resp.ContentLength)
	}
	p.kept = append(p.kept, piece...)
	if len(p.kept) <= maxKept {
		return nil
	}
	return p.release()
}

// release gives what is kept; nothing more is kept then.
func (p *passage) release() []byte {
	piece := p.kept
	p.kept, p.keeps = nil, false
	return piece
}

// relay passes the answer on, piece by piece as it comes. The Sink is begun with the first
// piece, not with the head, so that a replica that dies between the two costs nothing.
func (r *Router) relay(ctx context.Context, j *job, resp *upstream.Response, to Sink) error {
	kind := mediaType(resp.Header)
	p := passage{j: j, resp: resp, to: to, streamed: kind == "text/event-stream"}
	// An object is of no use before its end: kept until then, one that breaks off costs nothing.
	p.keeps = kind == "application/json" && resp.ContentLength <= maxKept
	follower, err := j.followed(p.streamed)
	if err != nil {
		return err
	}
	if j.seam == nil {
		j.scan.Reset(j.req.Prompt.API, p.streamed)
	}
	p.earlier = j.earlier()
	for {
		piece, err := resp.Next()
		if err == io.EOF { //nolint:errorlint // the plain io.EOF is the end; a wrapped one is an answer that was cut off
			break
		}
		if err != nil && p.streamed && j.scan.Done() {
			break // the client has the whole answer, and may have left
		}
		if err != nil {
			return err
		}
		j.choice.Alive()
		if p.keeps {
			if piece = p.keep(piece); piece == nil {
				continue
			}
		}
		var fault error
		if follower != nil {
			if piece, fault = follower.Feed(piece); len(piece) == 0 && fault == nil {
				continue // no event is whole yet
			}
		}
		if len(piece) > 0 {
			if err := r.pass(ctx, &p, piece); err != nil {
				return err
			}
		}
		if fault != nil {
			return fault
		}
	}
	if len(p.kept) > 0 {
		if err := r.pass(ctx, &p, p.release()); err != nil {
			return err
		}
	}
	if p.streamed && (j.scan.Events() > 0 || follower != nil) && !j.complete() {
		return io.ErrUnexpectedEOF
	}
	if !j.begun {
		if !j.choice.Begin() {
			return recalled(ctx)
		}
		if err := r.begin(j, resp, to); err != nil {
			return gone(err)
		}
	}
	return nil
}

// complete reports whether a stream that ended properly is whole: it said so, it told of an error, or each of its
// choices is finished, as some engines leave it at. What streams of other formats say is not known here.
func (j *job) complete() bool {
	if j.scan.Done() || j.scan.Failed() {
		return true
	}
	switch p := &j.req.Prompt; p.API {
	case prompt.APIChat, prompt.APICompletions:
		return j.scan.Finished() >= j.req.N*max(1, len(p.Texts), len(p.Batch))
	case prompt.APIOther:
		return true
	case prompt.APIResponses, prompt.APIMessages:
	}
	return false
}

// ended says what an answer that came to its end means: an engine may tell of its failure in a stream.
func (j *job) ended() (retry.Verdict, decision.End) {
	switch {
	case !j.scan.Failed():
		return retry.OK, decision.EndCompleted
	case j.scan.ContentEvents() == 0:
		return retry.ClientFault, decision.EndFailed // whose fault it is is not known
	}
	return retry.EngineError, decision.EndFailed
}

// pass hands one piece to the client and looks at it.
func (r *Router) pass(ctx context.Context, p *passage, piece []byte) error {
	j := p.j
	if !j.begun && !j.choice.Begin() {
		return recalled(ctx) // what comes too late is not for the client
	}
	over := p.streamed && j.scan.Done() // before this piece: what a client that left lacks of it is nothing
	content := j.scan.ContentEvents() - p.earlier
	if content == 0 { // a client that takes nothing must not make the prefill look longer
		j.scan.Feed(piece)
		if p.streamed && j.scan.ContentEvents() > p.earlier {
			r.sawFirstToken(j)
		}
	}
	if !j.begun {
		if err := r.begin(j, p.resp, p.to); err != nil {
			return gone(err)
		}
	}
	if err := p.to.Write(piece); err != nil && !over {
		return gone(err)
	}
	if content > 0 {
		j.scan.Feed(piece) // nobody waits for what it finds
	}
	if n := j.scan.ContentEvents() - p.earlier; p.streamed && n >= p.reported+progressStep {
		j.choice.Progress(n)
		p.reported = n
	}
	return nil
}

// begin hands the head of the answer to the client's surface.
func (r *Router) begin(j *job, resp *upstream.Response, to Sink) error {
	j.begun, j.status = true, resp.Status
	r.pin(j) // before the client can continue the response
	h := resp.Header
	if resp.ContentLength >= 0 {
		h.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	r.explain(j, h)
	r.explainLimits(j, h)
	return to.Begin(resp.Status, h)
}

// sawFirstToken marks the end of a prefill; the client's first token is the first replica's.
func (r *Router) sawFirstToken(j *job) {
	now := time.Now()
	if j.firstToken.IsZero() {
		j.firstToken = now
	}
	j.choice.FirstToken()
	if h := j.hop(); h != nil {
		h.firstToken = now
	}
}

// mediaType is the type of an answer without its parameters, empty when it cannot be read.
func mediaType(h http.Header) string {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return kind
}
