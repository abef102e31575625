package answer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/kit/sleep"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/sse"
)

// resumer has streams that break resumed on other replicas.
type resumer struct {
	attempts *attempt.Dispatcher
	retries  *attempt.Retrier
	tokens   *tokenizer.Pool
	results  *instruments.Keyed[string]
	// interrupted counts the streams that are continued; those that are lost are counted where the answer ends.
	interrupted *instruments.Keyed[interruption]
	log         *slog.Logger
}

// source returns the answer as it comes or, of a stream that another replica may resume, a source that does so.
func (rs *resumer) source(ctx context.Context, rq *intake.Request, t *attempt.Tries, d *attempt.Delivery, first *reply) source {
	if first.streamed && first.a.Whole() != nil {
		return rs.inside(ctx, rq, t, d)
	}
	if rq.Settings.ResumeStreams == 0 || !rq.Parsed.Stream {
		return first
	}
	if t.Carried() != nil && first.a.Follower() == nil && first.streamed {
		rs.pickUp(ctx, rq, t, first.a)
	}
	if !first.streamed && first.a.Follower() != nil {
		first.a.Follower().Lose(resume.LostForm)
	}
	s := &resumed{resumer: rs, rq: rq, tries: t, d: d, reply: first, follower: first.a.Follower()}
	if s.follower != nil {
		s.follower.Halted = func() bool { return s.reply.a.WasPaused(ctx) }
	}
	return s
}

// resumed is a stream that another replica resumes when its own dies. Its reader gets one stream.
type resumed struct {
	*resumer
	rq    *intake.Request
	tries *attempt.Tries
	d     *attempt.Delivery
	// reply is the one under way; follower is nil where the stream cannot be resumed.
	reply    *reply
	follower *resume.Follower
	// fault is why the reply is not read on, after what was returned last; io.EOF once its end was written.
	fault error
	// first is the first break, or a move while there was none; resumes is how many breaks there were.
	first   *attempt.Failure
	resumes int
	broke   breaks
	others  otherRoutes
	// ahead is what the client gets next, of a stream that has moved.
	ahead []byte
	relocation
}

// next implements source.
func (s *resumed) next(ctx context.Context) ([]byte, error) {
	for {
		piece, err := s.read(ctx)
		switch {
		case err == nil:
			return piece, nil
		case intake.IsEnd(err), !s.d.HasBegun():
			return nil, err
		}
		f := s.attempts.Broke(ctx, s.d, err)
		if f.Outcome != retry.Broken {
			return nil, s.worst(f)
		}
		why := interruption{kindOf(s.rq, s.follower), causeOf(s.reply.a, f), true}
		if end, ok := s.ending(ctx); ok {
			s.interrupted.Add(why)
			return end, nil
		}
		if errors.Is(err, resume.ErrDiverged) {
			return nil, s.diverged(ctx, f)
		}
		if f := s.resume(ctx, f); f != nil {
			return nil, f
		}
		s.interrupted.Add(why)
	}
}

// diverged ends a stream whose answer another replica writes in another way, through no fault of that replica.
func (s *resumed) diverged(ctx context.Context, f *attempt.Failure) *attempt.Failure {
	s.results.Add(resultDiverged)
	s.attempts.Blame.Settle(s.rq, s.d, s.reply.a, retry.Canceled)
	s.attempts.End(ctx, s.rq, s.d, f, decision.EndFailed)
	return f
}

// read returns the next bytes of the reply under way, as the client gets them.
func (s *resumed) read(ctx context.Context) ([]byte, error) {
	for {
		a := s.reply.a
		if out := s.ahead; out != nil {
			s.ahead = nil
			a.Gives()
			return out, nil
		}
		if s.fault != nil {
			return nil, s.fault
		}
		if a.Continues() && !s.reply.streamed {
			return nil, attempt.ErrContinuation
		}
		if s.follower == nil || !s.reply.streamed {
			return s.reply.next(ctx)
		}
		if s.moves() && s.relocate(ctx) {
			continue
		}
		// Only while nothing but the replica is waited for may another one be asked instead.
		waits := s.resumes < s.rq.Settings.ResumeStreams && s.couldLeave()
		if waits {
			a.Choice.SetResumable(true)
		}
		piece, err := s.reply.next(ctx)
		if waits {
			a.Choice.SetResumable(false)
		}
		if err != nil {
			return nil, err
		}
		if !a.BeginRest() {
			return nil, attempt.ErrStalled // the rest came too late
		}
		if piece, s.fault = s.follower.Feed(piece); len(piece) > 0 {
			if !sse.IsComment(piece) {
				a.Gives()
			}
			return piece, nil
		}
	}
}

// couldLeave reports whether another replica probably continues the stream, so that its own may be given up while it is silent.
func (s *resumed) couldLeave() bool {
	switch {
	case s.follower.Resumable():
		return true
	case s.follower.Parsed():
		return s.follower.Movable() && s.others.exist(s.rq)
	}
	return s.follower.Movable()
}

// moves reports whether another replica is to resume the stream now, because its own is left: from a moment at which it is known what
// the client has.
func (s *resumed) moves() bool {
	a := s.reply.a
	return a.Choice.ShouldMove() && s.d.HasBegun() && !a.IsUntouched() && s.follower.Movable()
}

// ending returns what is missing of a stream that ended early, after its finish reason; false if more is missing.
func (s *resumed) ending(ctx context.Context) ([]byte, bool) {
	if s.follower == nil || ctx.Err() != nil {
		return nil, false
	}
	a := s.reply.a
	s.follower.Seal(s.attempts.Engines.Stamp(a.Choice.Replica, a.CachedOwn()))
	end, ok := s.follower.Ending()
	if ok {
		s.fault = io.EOF
		a.EndedEarly()
		s.results.Add(resultEnded)
	}
	return end, ok
}

// worst is the failure that the client gets after f: the first break, when no other replica could resume the stream.
func (s *resumed) worst(f *attempt.Failure) *attempt.Failure {
	if s.first != nil && f.Outcome != retry.Canceled {
		return s.first
	}
	return f
}

// resume has another replica resume the stream, which broke with f. The failure that it returns is the client's.
func (s *resumed) resume(ctx context.Context, f *attempt.Failure) *attempt.Failure {
	a := s.reply.a
	if s.attempts.Stopper.Stops(ctx, s.rq, s.tries, s.d, f) {
		return s.worst(f)
	}
	untouched := a.IsUntouched() // the replica took the rest of the stream and gave nothing
	point, result := s.point(ctx, untouched, false)
	if result == resultResumed && s.resumes > 0 && !s.retries.Budget.Withdraw() { // the first time is free: the replica is gone
		result = resultBudget
	}
	if result != resultResumed {
		s.results.Add(result)
		return s.worst(f)
	}
	s.results.Add(result)
	span.Note(ctx, span.EventResume, span.Replica.String(string(a.Choice.Replica.ID)), span.Attempt.Int(s.tries.Ask.Attempt), span.OutputTokens.Int(point.Answer))
	s.log.Info("resuming a stream on another replica", "request", s.rq.Call.RequestID, "replica", string(a.Choice.Replica.ID), "tokens", point.Answer, "error", f.Public)
	if s.first == nil {
		s.first = f
	}
	switch {
	case untouched:
		s.tries.Refused()
	default:
		s.resumes++
		s.tries.Taken()
	}
	a.EndedEarly()
	s.attempts.Blame.Settle(s.rq, s.d, a, f.Outcome)
	s.attempts.End(ctx, s.rq, s.d, f, decision.EndResumed)
	s.retries.Again()
	s.follow(ctx, s.follower, point, func() *replica.Replica { return s.reply.a.Choice.Replica })
	s.tries.ContinueAt(s.rq, point)
	s.prepare(a)
	if untouched {
		s.tries.Ask.Exclude = s.unable(point, slices.DeleteFunc(s.tries.Ask.Exclude, func(id replica.ID) bool {
			return id != a.Choice.Replica.ID && s.broke.had(id)
		}))
		return s.reopen(ctx)
	}
	excluded, avoided := s.broke.add(a, s.attempts.Engines.Registry.Snapshot())
	s.tries.Ask.Exclude, s.tries.Ask.Avoid = s.unable(point, excluded), avoided // a replica that refused the request before may take its rest
	return s.reopen(ctx)
}

// breaks are the replicas where a stream broke, the last one last. The zero value has none.
type breaks []*replica.Replica

// had reports whether the stream broke at a replica.
func (b breaks) had(id replica.ID) bool {
	return slices.ContainsFunc(b, func(r *replica.Replica) bool { return r.ID == id })
}

// add notes a break at a, and returns the replicas that must not get the rest of the stream: that one, unless it has restarted since. Those where it
// broke before are only avoided: two replicas whose connections break in turn would leave none.
func (b *breaks) add(a *attempt.Attempt, view *registry.Snapshot) (excluded, avoided []replica.ID) {
	for _, r := range *b {
		if now, there := view.Replica(r.ID); there && now.Life == r.Life {
			avoided = append(avoided, r.ID)
		}
	}
	own := a.Choice.Replica
	*b = append(*b, own)
	if now, there := view.Replica(own.ID); there && now.Life != own.Life && now.State == replica.StateReady {
		return nil, avoided
	}
	return []replica.ID{own.ID}, avoided
}

// prepare prepares the attempt after a.
func (s *resumed) prepare(a *attempt.Attempt) {
	s.tries.Spend(a)
	s.tries.Next(a, s.first)
}

// reopen asks replicas for the rest of the stream until one sends it.
func (s *resumed) reopen(ctx context.Context) *attempt.Failure {
	for {
		earlier := s.d.Scan.ContentEvents()
		a, f := s.attempts.Open(ctx, s.rq, s.tries, s.d)
		switch {
		case f == nil:
			a.Continue(earlier, s.follower)
			s.reply, s.fault = newReply(s.rq, s.d), nil
			s.attempts.Pin(s.rq, s.d)
			return nil
		case f.Unchosen && ctx.Err() != nil:
			return f
		case f.Unchosen, f.Poisoned, !f.Outcome.Retryable(), s.tries.Refusals()+1 >= s.rq.Settings.MostAsked(), ctx.Err() != nil,
			!s.retries.Worth(s.rq, s.tries, s.d, f), !f.Outcome.Gone() && !s.retries.Withdraw(s.rq, s.d, f): // a replica that is gone has no work from it
			return s.worst(f)
		}
		s.retries.Note(ctx, f)
		s.tries.Refused()
		s.prepare(a)
	}
}

// point is where the stream can be resumed, if the result is resultResumed. The limit does not count a replica that left the stream
// untouched: that one refused.
func (s *resumed) point(ctx context.Context, untouched, moved bool) (*resume.Point, string) {
	if s.follower == nil {
		return nil, resultIneligible
	}
	point, ok := s.follower.Point()
	if ok && !moved && point.Replay != nil && point.Replay.Perhaps && !s.accepted(ctx, &point) {
		s.follower.NoParser()
		point, ok = s.follower.Point()
	}
	switch {
	case !ok || !point.Again && attempt.RestOf(s.rq, &point).Left(nil) < 1:
		return nil, resultIneligible
	case untouched && s.tries.Refusals()+1 >= s.rq.Settings.MostAsked(), !untouched && !moved && s.resumes >= s.rq.Settings.ResumeStreams:
		return nil, resultLimit
	case point.Replay != nil && !point.Replay.Perhaps && !s.accepted(ctx, &point):
		if point, ok = s.follower.Again(); !ok || moved {
			return nil, resultIneligible
		}
	case point.Replay == nil && !point.Sure && !s.wholeText(ctx, &point):
		return nil, resultSeam
	}
	return &point, resultResumed
}

// own is the replica of the reply under way, empty while there is none.
func (s *resumed) own() replica.ID {
	if s.reply == nil {
		return ""
	}
	return s.reply.a.Choice.Replica.ID
}

// wholeText asks a replica whether the client has all text of the ids before the point, but what was held back.
func (s *resumed) wholeText(ctx context.Context, point *resume.Point) bool {
	var own *attempt.Attempt
	if s.reply != nil {
		own = s.reply.a
	}
	texts, ok := s.texts(ctx, point.Tails(), own)
	return ok && point.Settle(texts)
}

// The texts of ids are requested several times, of replicas as they are then: without them a stream may be lost, and the replica that had the question
// may have gone, too.
const (
	textTries = 3
	textPause = 100 * time.Millisecond
)

// texts asks replicas that are not dead for the texts of lists of ids.
func (s *resumed) texts(ctx context.Context, lists [][]uint32, dead *attempt.Attempt) ([]string, bool) {
	var texts []string
	var err error
	for try := range textTries {
		if try > 0 && !sleep.For(ctx, textPause) {
			break
		}
		within, cancel := context.WithTimeout(ctx, s.rq.Settings.TokenizeTimeout)
		texts, err = s.tokens.DetokenizeBatch(within, s.attempts.Engines.Readers(s.rq, dead), s.rq.Pool.Served, lists)
		cancel()
		if err == nil {
			break
		}
	}
	if err != nil {
		s.log.Info("the text of token ids is not known: a stream is not resumed, or ends with the count of a few tokens too many", "request", s.rq.Call.RequestID, "error", err)
	}
	return texts, err == nil
}

// pickUp has an attempt follow the stream from the point on.
func (rs *resumer) pickUp(ctx context.Context, rq *intake.Request, t *attempt.Tries, a *attempt.Attempt) {
	a.Continue(0, t.Carried().Clone())
	s := &resumed{resumer: rs, rq: rq, tries: t}
	s.follow(ctx, a.Follower(), t.Point(), func() *replica.Replica { return a.Choice.Replica })
}

// otherRoutes remembers whether a request's pool has another replica with token routes. The zero value does not know yet.
type otherRoutes struct{ known, yes bool }

// exist reports whether there is another one, as of the first call.
func (o *otherRoutes) exist(rq *intake.Request) bool {
	if !o.known {
		n := 0
		for _, r := range rq.Pool.Replicas {
			if intake.HasTokenRoutes(r) {
				n++
			}
		}
		o.known, o.yes = true, n > 1
	}
	return o.yes
}
