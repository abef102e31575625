package answer

import (
	"context"
	"errors"
	"io"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// inside is an answer that the engine streams and the client gets in one piece: other replicas can continue it. Until it is whole, the client has
// nothing, so where no replica continues it the request is sent again.
type inside struct {
	*resumed
	// client is the delivery to the client; the resumed one has a delivery for the stream.
	client *attempt.Delivery
	tries  *attempt.Tries
	whole  *resume.Whole
	over   bool
}

// inside returns the answer in one piece that the attempt under way streams.
func (rs *resumer) inside(ctx context.Context, rq *intake.Request, t *attempt.Tries, d *attempt.Delivery) source {
	own, stream := *t, d.Part()
	stream.Scan.Reset(rq.Parsed.Prompt.API, true)
	first := newReply(rq, stream)
	s := &resumed{resumer: rs, rq: rq, tries: &own, d: stream, reply: first, follower: first.a.Follower()}
	return &inside{resumed: s, client: d, tries: t, whole: first.a.Whole()}
}

// next implements source.
func (s *inside) next(ctx context.Context) ([]byte, error) {
	if s.over {
		return nil, io.EOF
	}
	for {
		piece, err := s.resumed.next(ctx)
		if intake.IsEnd(err) {
			break
		}
		if err == nil {
			err = s.take(piece)
		}
		if err != nil {
			return nil, s.failed(err)
		}
	}
	if err := s.parse(ctx); err != nil {
		return nil, s.failed(err)
	}
	answer, err := s.whole.Answer(s.d.Attempts() > 0)
	if err != nil {
		return nil, s.failed(err)
	}
	s.over = true
	s.settle()
	resp := s.client.Attempt.Response
	resp.Header.Set("Content-Type", "application/json")
	resp.ContentLength = int64(len(answer))
	return answer, nil
}

// parse has an engine's parser take the answer apart, where one does: the engine that has written the end, or another one.
func (s *inside) parse(ctx context.Context) error {
	if !s.whole.Parsed() {
		return nil
	}
	question := s.whole.Question(s.rq.Pool.Served, s.rq.Body)
	if question == nil {
		return resume.ErrNotWhole
	}
	e := s.attempts.Engines
	list := []*replica.Replica{s.reply.a.Choice.Replica}
	for _, o := range e.Readers(s.rq, s.reply.a) {
		if intake.HasTokenRoutes(o) {
			list = append(list, o)
		}
	}
	err := error(nil)
	for _, on := range list[:min(len(list), textTries)] {
		var answer []byte
		if answer, err = e.AskDerender(ctx, s.rq, on, question); err == nil {
			return s.whole.Take(answer, s.rq.HasTools())
		}
	}
	return err
}

// take takes a piece of the stream.
func (s *inside) take(piece []byte) error {
	a := s.d.Attempt
	if s.d.Scan.Feed(piece); !s.d.HasBegun() && s.d.Scan.ContentEvents() > 0 {
		if !a.Choice.Begin() {
			return attempt.ErrStalled
		}
		s.d.Begin(a.Response.Status)
	}
	return s.whole.Feed(piece)
}

// settle leaves the attempt under way, and the shared state of the attempts, to the client's delivery.
func (s *inside) settle() {
	if s.client.Attempt = s.d.Attempt; s.client.Attempt == nil { // no replica was chosen for the rest
		s.client.Attempt = s.reply.a
	}
	s.client.Count(s.d.Attempts())
	s.client.Learn(s.d)
	s.tries.Learn(s.resumed.tries)
}

// failed is the failure of an answer that has not come whole.
func (s *inside) failed(err error) error {
	s.settle()
	if errors.Is(err, resume.ErrNotWhole) && !s.whole.Failed() {
		s.attempts.Engines.NoForm(s.client.Attempt.Choice.Replica, s.rq.Parsed.Prompt.API)
	}
	if f, ok := errors.AsType[*attempt.Failure](err); ok && s.tries.IsPoison() {
		poisoned := *f
		poisoned.Poisoned = true
		return &poisoned
	}
	return err
}
