package answer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/sse"
)

const (
	// warmAbove is the number of tokens above which the next replica computes the context before the stream moves. Fewer fit into one
	// step of an engine.
	warmAbove = 2048
	// moveWait is how long a client may wait for the first token of the next replica, before its own replica is read again.
	moveWait = 2 * time.Second
	// warmWait bounds the computation of the context.
	warmWait = 2 * time.Minute
	// firstMovePause and lastMovePause bound the time until a move that failed is tried again.
	firstMovePause = time.Second
	lastMovePause  = 30 * time.Second
)

// relocation is the move of a stream to another replica while its own still writes it. The old connection stays open until the next
// replica has sent the first token, so that a move that fails costs nothing. The zero value has not begun.
type relocation struct {
	// made counts the attempts, failed those in a sequence that failed; due is when the next one may begin.
	made, failed int
	due          time.Time
	// warming is the computation of the context on the next replica, nil when there is none; warm is set once it is done.
	warming *warming
	warm    bool
}

// warming is an attempt that has a replica compute the context of a stream.
type warming struct {
	cancel context.CancelFunc
	// done is closed at its end; ok is set before.
	done chan struct{}
	ok   bool
}

// over reports whether it has ended, and how.
func (w *warming) over() (over, ok bool) {
	select {
	case <-w.done:
		return true, w.ok
	default:
		return false, false
	}
}

// fail puts the next attempt off.
func (m *relocation) fail() {
	m.due = time.Now().Add(min(firstMovePause<<min(m.failed, 10), lastMovePause))
	m.failed++
	m.warm = false
}

// close implements source.
func (s *resumed) close() {
	if w := s.warming; w != nil {
		w.cancel()
		<-w.done // it reads the request
	}
}

// relocate takes the next step of a move, at a moment at which the client has exactly the text of the tokens. It reports whether the reply is
// another replica's now.
func (s *resumed) relocate(ctx context.Context) bool {
	if w := s.warming; w != nil {
		over, ok := w.over()
		if !over {
			return false
		}
		w.cancel()
		s.warming = nil
		if s.warm = ok; !ok {
			s.fail()
			return false
		}
	}
	if time.Now().Before(s.due) {
		return false
	}
	asks, cancel := context.WithTimeout(ctx, moveWait) // the client waits
	point, result := s.point(asks, false, true)
	cancel()
	if result != resultResumed {
		s.fail()
		return false
	}
	if !s.warm && len(point.IDs) > warmAbove {
		s.warming = s.warmUp(ctx, point)
		return false
	}
	if !s.moveTo(ctx, point) {
		s.fail()
		return false
	}
	s.relocation = relocation{made: s.made}
	return true
}

// trial is the question for a replica that continues the stream from the point while its own replica still writes it. Its id is
// another one, because both are booked at the same time.
func (s *resumed) trial(point *resume.Point) *attempt.Tries {
	s.made++
	t := *s.tries
	t.Ask.ID = fmt.Sprintf("%s-%d", s.rq.ID, s.made)
	t.Spend(s.reply.a)
	t.Reset()
	t.ContinueAt(s.rq, point)
	t.Ask.Exclude = s.unable(point, nil)
	t.Next(s.reply.a, nil)
	t.Readmit(s.reply.a, s.attempts.Engines.Registry.Snapshot())
	return &t
}

// warmUp has another replica compute the context of the stream up to the point, in a goroutine.
func (s *resumed) warmUp(ctx context.Context, point *resume.Point) *warming {
	t := s.trial(point)
	t.Warm()
	rq := *s.rq
	rq.Story = nil // belongs to the goroutine of the request
	ctx, cancel := context.WithTimeout(ctx, warmWait)
	w := &warming{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.ok = s.compute(ctx, &rq, t)
	}()
	return w
}

// compute makes the attempt of a warm-up, and reports whether it came to its end.
func (s *resumed) compute(ctx context.Context, rq *intake.Request, t *attempt.Tries) bool {
	d := &attempt.Delivery{To: s.d.To}
	defer s.attempts.Blame.Conclude(rq, d)
	a, f := s.attempts.Open(ctx, rq, t, d)
	if f != nil {
		return false
	}
	for {
		_, err := a.Response.Next()
		switch {
		case err == nil:
			a.Choice.Alive()
			continue
		case intake.IsEnd(err):
			s.attempts.Blame.Settle(rq, d, a, retry.OK)
			s.attempts.End(ctx, rq, d, nil, decision.EndCompleted)
			return true
		}
		f := s.attempts.Broke(ctx, d, err)
		s.attempts.Blame.Settle(rq, d, a, f.Outcome)
		s.attempts.End(ctx, rq, d, f, attempt.EndOf(f.Outcome))
		return false
	}
}

// moveTo has another replica continue the stream from the point, and ends its own replica's part once the first token is there. The stream
// stays where it is when there is no such replica, or not in time.
func (s *resumed) moveTo(ctx context.Context, point *resume.Point) bool {
	old := s.reply.a
	old.Hop = s.rq.Story.Keep(old.Hop)
	t, d := s.trial(point), s.d.Aside()
	waits, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(moveWait, cancel)
	a, f := s.attempts.Open(waits, s.rq, t, d)
	if f != nil {
		s.d.Learn(d)
		late.Stop()
		cancel()
		return false
	}
	follower := s.follower.Clone()
	s.follow(waits, follower, point, func() *replica.Replica { return a.Choice.Replica })
	a.Continue(s.d.Scan.ContentEvents(), follower)
	next := newReply(s.rq, d)
	next.d = s.d
	first, err := next.first(ctx)
	if err != nil && !intake.IsEnd(err) || len(first) == 0 || !late.Stop() || !a.BeginRest() {
		f := s.attempts.Broke(waits, d, cmp.Or(err, attempt.ErrContinuation))
		outcome := f.Outcome
		if errors.Is(err, resume.ErrDiverged) { // through no fault of the replica
			outcome = retry.Canceled
		}
		s.attempts.Blame.Settle(s.rq, d, a, outcome)
		s.d.Learn(d)
		s.attempts.End(waits, s.rq, d, f, decision.EndFailed)
		cancel()
		return false
	}
	s.d.Learn(d)
	s.leave(ctx, point, t)
	s.d.Attempt = a
	s.d.Count(1)
	*s.tries = *t
	s.attempts.Pin(s.rq, s.d)
	s.d.Follows()
	s.reply, s.follower, s.ahead, s.fault = next, follower, first, err
	context.AfterFunc(ctx, cancel)
	return true
}

// first returns what the client gets first of an answer that continues a stream. It returns io.EOF with it when nothing follows.
func (p *reply) first(ctx context.Context) ([]byte, error) {
	for p.streamed {
		piece, err := p.next(ctx)
		if err != nil {
			return nil, err
		}
		out, err := p.a.Follower().Feed(piece)
		switch {
		case err != nil && !intake.IsEnd(err):
			return nil, err
		case len(out) > 0 && !sse.IsComment(out), err != nil:
			return bytes.Clone(out), err
		}
	}
	return nil, attempt.ErrContinuation
}

// leave ends the part of the replica that is left.
func (s *resumed) leave(ctx context.Context, point *resume.Point, t *attempt.Tries) {
	old := s.reply.a
	f := &attempt.Failure{Outcome: retry.Moved, Public: apierror.New(apierror.UpstreamStreamBroken, "the replica is left, and the stream continues on another one", nil)}
	s.results.Add(resultMoved)
	s.interrupted.Add(interruption{kindOf(s.rq, s.follower), leftFor(old, s.attempts.Engines.Registry.Snapshot()), true})
	s.retries.Again()
	span.Note(ctx, span.EventResume, span.Replica.String(string(old.Choice.Replica.ID)), span.Attempt.Int(s.tries.Ask.Attempt), span.OutputTokens.Int(point.Answer))
	s.log.Info("a stream moves to another replica", "request", s.rq.Call.RequestID, "replica", string(old.Choice.Replica.ID), "tokens", point.Answer, "decision", t.Ask.ID)
	s.attempts.Blame.Settle(s.rq, s.d, old, f.Outcome)
	s.attempts.End(ctx, s.rq, s.d, f, decision.EndResumed)
}
