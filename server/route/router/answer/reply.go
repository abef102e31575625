package answer

import (
	"context"
	"io"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/wire/sse"
)

// source is an answer to be read: a replica's, or a stream that others resume.
type source interface {
	// next returns the next bytes, valid until the following call, and io.EOF at the end of a complete answer.
	next(ctx context.Context) ([]byte, error)
	// close ends what the source has under way apart from the answer.
	close()
}

// reply is the answer of one replica.
type reply struct {
	rq *intake.Request
	d  *attempt.Delivery
	a  *attempt.Attempt
	// streamed is set for a stream of events.
	streamed bool
	lead     sse.Lead
	// ahead is what was read of the answer before it was needed.
	ahead []byte
}

func newReply(rq *intake.Request, d *attempt.Delivery) *reply {
	return &reply{rq: rq, d: d, a: d.Attempt, streamed: attempt.MediaType(d.Attempt.Response.Header) == "text/event-stream"}
}

// next implements source. Comments in front of the first event are dropped: they must not begin the client's answer, since
// another replica may still give it.
func (p *reply) next(context.Context) ([]byte, error) {
	if piece := p.ahead; piece != nil {
		p.ahead = nil
		return piece, nil
	}
	piece, err := p.a.Response.Next()
	for err == nil {
		if !p.streamed || !sse.IsComment(piece) { // an engine that makes no progress sends comments too
			p.a.Choice.Alive()
		}
		if !p.streamed {
			return piece, nil
		}
		if piece = p.lead.Skip(piece); len(piece) > 0 {
			return piece, nil
		}
		piece, err = p.a.Response.Next()
	}
	switch {
	case p.streamed && p.d.Scan.Done(): // the client has the whole answer, and may have left
		return nil, io.EOF
	case intake.IsEnd(err) && p.streamed && (p.d.Scan.Events() > 0 || p.a.Follower() != nil) && !p.complete():
		return nil, io.ErrUnexpectedEOF
	}
	return nil, err // the plain io.EOF is the end; a wrapped one is an answer that was cut off
}

// close implements source.
func (*reply) close() {}

// complete reports whether a stream that ended properly is whole: it said so, it reported an error, or each of its
// choices is finished, as some engines leave it at. What streams of other formats say is not known here.
func (p *reply) complete() bool {
	scan := &p.d.Scan
	if scan.Done() || scan.Failed() {
		return true
	}
	switch ask := &p.rq.Parsed.Prompt; ask.API {
	case prompt.APIChat, prompt.APICompletions:
		return scan.Finished() >= p.rq.Parsed.N*max(1, len(ask.Texts), len(ask.Batch))
	case prompt.APIOther:
		return true
	case prompt.APIResponses, prompt.APIMessages:
	}
	return false
}
