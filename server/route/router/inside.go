package router

import (
	"context"
	"errors"
	"io"

	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// inside is an answer that the engine streams and the client gets in one piece: other replicas can continue it. Until it is whole, the client has
// nothing, so where no replica continues it the request is sent again.
type inside struct {
	*resumed
	// client is the delivery to the client; the resumed one has a delivery for the stream.
	client *delivery
	tries  *tries
	whole  *resume.Whole
	over   bool
}

// inside returns the answer in one piece that the attempt under way streams.
func (rs *resumer) inside(ctx context.Context, rq *intake.Request, t *tries, d *delivery) source {
	own, stream := *t, &delivery{attempt: d.attempt, doubts: d.doubts}
	stream.scan.Reset(rq.Parsed.Prompt.API, true)
	first := newReply(rq, stream)
	s := &resumed{resumer: rs, rq: rq, tries: &own, d: stream, reply: first, follower: first.a.follower}
	return &inside{resumed: s, client: d, tries: t, whole: first.a.whole}
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
	answer, err := s.whole.Answer(s.d.attempts > 0)
	if err != nil {
		return nil, s.failed(err)
	}
	s.over = true
	s.settle()
	resp := s.client.attempt.resp
	resp.Header.Set("Content-Type", "application/json")
	resp.ContentLength = int64(len(answer))
	return answer, nil
}

// take takes a piece of the stream.
func (s *inside) take(piece []byte) error {
	a := s.d.attempt
	if s.d.scan.Feed(piece); !s.d.begun && s.d.scan.ContentEvents() > 0 {
		if s.d.begun = a.choice.Begin(); !s.d.begun {
			return errStalled
		}
	}
	return s.whole.Feed(piece)
}

// settle leaves the attempt under way, and the shared state of the attempts, to the client's delivery.
func (s *inside) settle() {
	if s.client.attempt = s.d.attempt; s.client.attempt == nil { // no replica was chosen for the rest
		s.client.attempt = s.reply.a
	}
	s.client.attempts += s.d.attempts
	s.client.doubts = s.d.doubts
	s.tries.ask.Attempt, s.tries.ask.Exclude = s.resumed.tries.ask.Attempt, s.resumed.tries.ask.Exclude
	s.tries.passed, s.tries.before, s.tries.deaths = s.resumed.tries.passed, s.resumed.tries.before, s.resumed.tries.deaths
}

// failed is the failure of an answer that has not come whole.
func (s *inside) failed(err error) error {
	s.settle()
	if errors.Is(err, resume.ErrNotWhole) && !s.whole.Failed() {
		s.attempts.engines.noForm(s.client.attempt.choice.Replica, s.rq.Parsed.Prompt.API)
	}
	if f, ok := errors.AsType[*failure](err); ok && s.tries.deaths.named {
		poisoned := *f
		poisoned.poisoned = true
		return &poisoned
	}
	return err
}
