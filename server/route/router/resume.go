package router

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/sse"
)

// resumer has streams that break resumed on other replicas.
type resumer struct {
	attempts *dispatcher
	retries  *retrier
	tokens   *tokenizer.Pool
	results  *instruments.Keyed[string]
	// interrupted counts the streams that are continued; those that are lost are counted where the answer ends.
	interrupted *interruptions
	log         *slog.Logger
}

// source returns the answer as it comes or, of a stream that another replica may resume, a source that does so.
func (rs *resumer) source(ctx context.Context, rq *request, t *tries, d *delivery, first *reply) source {
	if first.streamed && first.a.whole != nil {
		return rs.inside(ctx, rq, t, d)
	}
	if rq.set.ResumeStreams == 0 || !rq.parsed.Stream {
		return first
	}
	if t.carried != nil && first.a.follower == nil && first.streamed {
		rs.pickUp(ctx, rq, t, first.a)
	}
	if !first.streamed && first.a.follower != nil {
		first.a.follower.Lose(resume.LostForm)
	}
	s := &resumed{resumer: rs, rq: rq, tries: t, d: d, reply: first, follower: first.a.follower}
	if s.follower != nil {
		s.follower.Halted = func() bool { return s.reply.a.paused.Aborted(ctx) }
	}
	return s
}

// resumed is a stream that another replica resumes when its own dies. Its reader gets one stream.
type resumed struct {
	*resumer
	rq    *request
	tries *tries
	d     *delivery
	// reply is the one under way; follower is nil where the stream cannot be resumed.
	reply    *reply
	follower *resume.Follower
	// fault is why the reply is not read on, after what was returned last; io.EOF once its end was written.
	fault error
	// first is the first break, or a move while there was none; resumes is how many breaks there were.
	first   *failure
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
		case isEnd(err), !s.d.begun:
			return nil, err
		}
		f := s.attempts.broke(ctx, s.d, err)
		if f.outcome != retry.Broken {
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
func (s *resumed) diverged(ctx context.Context, f *failure) *failure {
	s.results.Add(resultDiverged)
	s.attempts.blame.settle(s.rq, s.d, s.reply.a, retry.Canceled)
	s.attempts.end(ctx, s.rq, s.d, f, decision.EndFailed)
	return f
}

// read returns the next bytes of the reply under way, as the client gets them.
func (s *resumed) read(ctx context.Context) ([]byte, error) {
	for {
		a := s.reply.a
		if out := s.ahead; out != nil {
			s.ahead, a.gave = nil, true
			return out, nil
		}
		if s.fault != nil {
			return nil, s.fault
		}
		if a.point != nil && !s.reply.streamed {
			return nil, errContinuation
		}
		if s.follower == nil || !s.reply.streamed {
			return s.reply.next(ctx)
		}
		if s.moves() && s.relocate(ctx) {
			continue
		}
		// Only while nothing but the replica is waited for may another one be asked instead.
		waits := s.resumes < s.rq.set.ResumeStreams && s.couldLeave()
		if waits {
			a.choice.SetResumable(true)
		}
		piece, err := s.reply.next(ctx)
		if waits {
			a.choice.SetResumable(false)
		}
		if err != nil {
			return nil, err
		}
		if a.point != nil && !a.begun {
			if a.begun = a.choice.Begin(); !a.begun {
				return nil, errStalled // the rest came too late
			}
		}
		if piece, s.fault = s.follower.Feed(piece); len(piece) > 0 {
			a.gave = a.gave || !sse.IsComment(piece)
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
	return a.choice.ShouldMove() && s.d.begun && (a.point == nil || a.gave) && s.follower.Movable()
}

// ending returns what is missing of a stream that ended early, after its finish reason; false if more is missing.
func (s *resumed) ending(ctx context.Context) ([]byte, bool) {
	if s.follower == nil || ctx.Err() != nil {
		return nil, false
	}
	a := s.reply.a
	s.follower.Seal(s.attempts.engines.stamps.known(a.choice.Replica, a.cachedOwn()))
	end, ok := s.follower.Ending()
	if ok {
		s.fault = io.EOF
		a.endedEarly()
		s.results.Add(resultEnded)
	}
	return end, ok
}

// worst is the failure that the client gets after f: the first break, when no other replica could resume the stream.
func (s *resumed) worst(f *failure) *failure {
	if s.first != nil && f.outcome != retry.Canceled {
		return s.first
	}
	return f
}

// resume has another replica resume the stream, which broke with f. The failure that it returns is the client's.
func (s *resumed) resume(ctx context.Context, f *failure) *failure {
	a := s.reply.a
	if s.attempts.stopper.stops(ctx, s.rq, s.tries, s.d, f) {
		return s.worst(f)
	}
	untouched := a.point != nil && !a.gave // the replica took the rest of the stream and gave nothing
	point, result := s.point(ctx, untouched, false)
	if result == resultResumed && s.resumes > 0 && !s.retries.budget.Withdraw() { // the first time is free: the replica is gone
		result = resultBudget
	}
	if result != resultResumed {
		s.results.Add(result)
		return s.worst(f)
	}
	s.results.Add(result)
	span.Note(ctx, span.EventResume, span.Replica.String(string(a.choice.Replica.ID)), span.Attempt.Int(s.tries.ask.Attempt), span.OutputTokens.Int(point.Answer))
	s.log.Info("resuming a stream on another replica", "request", s.rq.call.RequestID, "replica", string(a.choice.Replica.ID), "tokens", point.Answer, "error", f.public)
	if s.first == nil {
		s.first = f
	}
	switch {
	case untouched:
		s.tries.refusals++
	default:
		s.resumes++
		s.tries.refusals = 0
	}
	a.endedEarly()
	s.attempts.blame.settle(s.rq, s.d, a, f.outcome)
	s.attempts.end(ctx, s.rq, s.d, f, decision.EndResumed)
	s.retries.again()
	s.follow(ctx, s.follower, point, func() *replica.Replica { return s.reply.a.choice.Replica })
	s.tries.continueAt(s.rq, point)
	s.prepare(a)
	if untouched {
		s.tries.ask.Exclude = s.unable(point, slices.DeleteFunc(s.tries.ask.Exclude, func(id replica.ID) bool {
			return id != a.choice.Replica.ID && s.broke.had(id)
		}))
		return s.reopen(ctx)
	}
	excluded, avoided := s.broke.add(a, s.attempts.engines.registry.Snapshot())
	s.tries.ask.Exclude, s.tries.ask.Avoid = s.unable(point, excluded), avoided // a replica that refused the request before may take its rest
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
func (b *breaks) add(a *attempt, view *registry.Snapshot) (excluded, avoided []replica.ID) {
	for _, r := range *b {
		if now, there := view.Replica(r.ID); there && now.Life == r.Life {
			avoided = append(avoided, r.ID)
		}
	}
	own := a.choice.Replica
	*b = append(*b, own)
	if now, there := view.Replica(own.ID); there && now.Life != own.Life && now.State == replica.StateReady {
		return nil, avoided
	}
	return []replica.ID{own.ID}, avoided
}

// prepare prepares the attempt after a.
func (s *resumed) prepare(a *attempt) {
	s.tries.before += a.held + time.Since(a.chosen)
	s.tries.next(a, s.first)
}

// reopen asks replicas for the rest of the stream until one sends it.
func (s *resumed) reopen(ctx context.Context) *failure {
	for {
		earlier := s.d.scan.ContentEvents()
		a, f := s.attempts.open(ctx, s.rq, s.tries, s.d)
		switch {
		case f == nil:
			a.earlier, a.follower = earlier, s.follower
			s.reply, s.fault = newReply(s.rq, s.d), nil
			s.attempts.responses.pin(s.rq, s.d)
			return nil
		case f.unchosen && ctx.Err() != nil:
			return f
		case f.unchosen, f.poisoned, !f.outcome.Retryable(), s.tries.refusals+1 >= s.rq.set.mostAsked(), ctx.Err() != nil,
			!s.retries.worth(s.rq, s.tries, s.d, f), !f.outcome.Gone() && !s.retries.withdraw(s.rq, s.d, f): // a replica that is gone has no work from it
			return s.worst(f)
		}
		s.retries.note(ctx, f)
		s.tries.refusals++
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
	case !ok || !point.Again && (&remainder{rq: s.rq, point: &point}).left(nil) < 1:
		return nil, resultIneligible
	case untouched && s.tries.refusals+1 >= s.rq.set.mostAsked(), !untouched && !moved && s.resumes >= s.rq.set.ResumeStreams:
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
	return s.reply.a.choice.Replica.ID
}

// wholeText asks a replica whether the client has all text of the ids before the point, but what was held back.
func (s *resumed) wholeText(ctx context.Context, point *resume.Point) bool {
	var own *attempt
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
func (s *resumed) texts(ctx context.Context, lists [][]uint32, dead *attempt) ([]string, bool) {
	var texts []string
	var err error
	for try := range textTries {
		if try > 0 && !pause(ctx, textPause) {
			break
		}
		within, cancel := context.WithTimeout(ctx, s.rq.set.TokenizeTimeout)
		texts, err = s.tokens.DetokenizeBatch(within, s.attempts.engines.readers(s.rq, dead), s.rq.pool.Served, lists)
		cancel()
		if err == nil {
			break
		}
	}
	if err != nil {
		s.log.Info("the text of token ids is not known: a stream is not resumed, or ends with the count of a few tokens too many", "request", s.rq.call.RequestID, "error", err)
	}
	return texts, err == nil
}

// readers are the replicas that can be asked for a text of the request now, without the replica of attempt a in its life; a may be nil.
func (e *sender) readers(rq *request, a *attempt) []*replica.Replica {
	var list []*replica.Replica
	for _, r := range e.registry.Snapshot().Replicas {
		if _, serves := r.Serves(rq.pool.Served); !serves || r.State != replica.StateReady && r.State != replica.StateDraining {
			continue
		}
		if a == nil || r.ID != a.choice.Replica.ID || r.Life != a.choice.Replica.Life {
			list = append(list, r)
		}
	}
	return list
}

// pause waits; false when ctx ends before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// continueAt makes the rest of the answer what the next replica is chosen for.
func (t *tries) continueAt(rq *request, point *resume.Point) {
	t.point = point
	if point.Again {
		return
	}
	a := &t.ask
	a.Splittable = false
	a.PromptTokens, a.Estimated, a.Longest, a.Keyless = len(point.IDs), false, len(point.IDs), false
	a.ExpectedOutput, a.OutputLimit = max(rq.parsed.Expected()-point.Answer, 0), max(rq.parsed.MaxTokens-point.Answer, 0)
	ns := rq.namespace()
	a.Hashes = func(blockSize int) []blockhash.Hash {
		if blockSize <= 0 {
			return nil
		}
		return blockhash.Extend(nil, 0, point.IDs, blockSize, ns.Seed())
	}
}

// pickUp has an attempt follow the stream from the point on.
func (rs *resumer) pickUp(ctx context.Context, rq *request, t *tries, a *attempt) {
	a.follower = t.carried.Clone()
	s := &resumed{resumer: rs, rq: rq, tries: t}
	s.follow(ctx, a.follower, t.point, func() *replica.Replica { return a.choice.Replica })
}
