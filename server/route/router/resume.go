package router

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// HeaderResume says "off" for a stream that must not go on on another replica.
const HeaderResume = "X-Kvpilot-Resume"

// The results of a stream that broke off after its first byte, as metrics tell them apart.
const (
	resultResumed    = "resumed"
	resultEnded      = "ended"      // only its end was missing, which the router wrote
	resultIneligible = "ineligible" // a request or a stream that cannot be resumed exactly
	resultSeam       = "seam"       // the client may not have all text of the last token
	resultLimit      = "limit"
	resultBudget     = "budget"
)

func resumeResults() []string {
	return []string{resultResumed, resultEnded, resultIneligible, resultSeam, resultLimit, resultBudget}
}

// follow prepares a streamed answer to be written on by another replica, where that can be exact.
func (r *Router) follow(j *job) {
	if j.set.ResumeStreams == 0 || !j.call.Route.Generates() || j.upload != nil || j.enc == nil || j.enc.Tokens >= resume.MaxTokens ||
		len(j.pool.Replicas) < 2 || j.call.Options.Pinned != "" || !j.req.Resumable() ||
		strings.EqualFold(j.call.Header.Get(HeaderResume), "off") {
		return
	}
	p := resume.Params{API: j.req.Prompt.API, Usage: j.req.IncludeUsage}
	if j.enc.Exact && !j.enc.Partial {
		p.Known = j.enc.IDs
	}
	j.follower = resume.New(p)
}

// following makes the follower ready for an attempt, and says whether the engine is asked for token ids.
// The Rust front end writes other bytes when it is asked.
func (j *job) following() bool {
	if j.follower == nil {
		return false
	}
	j.follower.Restart()
	if j.choice.Replica.RustFrontend {
		j.follower.Lose(resume.LostIDs)
		return false
	}
	return true
}

// goesOn decides whether a stream that broke off is written on by another replica, and prepares the attempt.
func (r *Router) goesOn(ctx context.Context, j *job, f *failure) bool {
	if j.set.ResumeStreams == 0 || !j.begun || !j.req.Stream || f.outcome != retry.Broken {
		return false
	}
	seam, result := r.seam(ctx, j)
	if result == resultResumed && j.resumes > 0 && !r.Budget.Withdraw() { // the first time is free: the replica is gone
		result = resultBudget
	}
	r.metrics.resumed(result)
	if result != resultResumed {
		return false
	}
	span.Note(ctx, span.EventResume, span.Replica.String(string(j.choice.Replica.ID)), span.Attempt.Int(j.attempt), span.OutputTokens.Int(seam.Answer))
	r.Log.Info("a stream is resumed on another replica", "request", j.call.RequestID, "replica", string(j.choice.Replica.ID), "tokens", seam.Answer, "error", f.public)
	if j.seam == nil {
		j.broke = f
	}
	j.resumes++
	j.refusals = 0
	j.continueFrom(seam)
	j.asked.Exclude = j.dead // who refused the request before may take its rest
	j.retry(j.broke)
	j.dead = slices.Clip(j.asked.Exclude)
	return true
}

// asksAgain decides whether yet another replica is asked to write the stream on after f, with which
// one refused to.
func (r *Router) asksAgain(ctx context.Context, j *job, f *failure) bool {
	if j.seam == nil || !f.outcome.Retryable() || j.refusals+1 >= j.set.attempts || ctx.Err() != nil || !r.Budget.Withdraw() {
		return false
	}
	r.metrics.retried(f.outcome)
	noteRetry(ctx, f.outcome)
	j.refusals++
	j.before += j.held + time.Since(j.chosen)
	j.retry(j.broke)
	return true
}

// seam is where the stream goes on, if the result is resultResumed.
func (r *Router) seam(ctx context.Context, j *job) (*resume.Seam, string) {
	if j.follower == nil {
		return nil, resultIneligible
	}
	seam, ok := j.follower.Seam()
	switch {
	case !ok || r.rest(j, &seam, nil) < 1:
		return nil, resultIneligible
	case j.resumes >= j.set.ResumeStreams:
		return nil, resultLimit
	case !seam.Sure && !r.wholeText(ctx, j, &seam):
		return nil, resultSeam
	}
	return &seam, resultResumed
}

// wholeText asks a replica whether the client has all text of the ids before the seam.
func (r *Router) wholeText(ctx context.Context, j *job, seam *resume.Seam) bool {
	dead := j.choice.Replica.ID
	others := slices.DeleteFunc(slices.Clone(j.pool.Replicas), func(o *replica.Replica) bool {
		return o.ID == dead || slices.Contains(j.asked.Exclude, o.ID)
	})
	ctx, cancel := context.WithTimeout(ctx, j.set.TokenizeTimeout)
	defer cancel()
	texts, err := r.Tokens.DetokenizeBatch(ctx, others, j.pool.Served, [][]uint32{seam.Tail()})
	return err == nil && len(texts) == 1 && seam.Whole(texts[0])
}

// rest is how many tokens of the answer are left after the seam: of the client's limit, or of the model's
// context on the replica, or, with none, on any that tells it.
func (r *Router) rest(j *job, seam *resume.Seam, on *replica.Replica) int {
	if limit := j.req.AnswerLimit(); limit > 0 {
		return limit - seam.Answer
	}
	longest := contextOf(on, j.pool.Served)
	for _, o := range j.pool.Replicas {
		if longest > 0 {
			break
		}
		longest = contextOf(o, j.pool.Served)
	}
	return longest - len(seam.IDs)
}

// contextOf is the length of the model's context on a replica, 0 when it is not known. An adapter has
// that of its base model.
func contextOf(on *replica.Replica, served string) int {
	if on == nil {
		return 0
	}
	m, _ := on.Serves(served)
	return selector.Context(on, m)
}

// continueFrom makes the rest of the answer what the next replica is chosen for and asked.
func (j *job) continueFrom(seam *resume.Seam) {
	j.follower.GoOn()
	j.seam = seam
	j.before += j.held + time.Since(j.chosen)
	a := &j.asked
	a.PromptTokens, a.Estimated, a.Longest, a.Keyless = len(seam.IDs), false, len(seam.IDs), false
	a.ExpectedOutput = max(j.req.MaxTokens-seam.Answer, 0)
	ns := blockhash.Namespace{Adapter: j.adapter, Salt: j.req.Salt}
	a.Hashes = func(blockSize int) []blockhash.Hash {
		if blockSize <= 0 {
			return nil
		}
		return blockhash.Extend(nil, 0, seam.IDs, blockSize, ns.Seed())
	}
}

// told is what the client is told after f: of the break itself when another replica could not help.
func (j *job) told(f *failure) error {
	if j.broke != nil && f.outcome != retry.Canceled {
		return j.broke.public
	}
	return f.public
}

// undone is what the client is told when no replica was chosen: as told says.
func (j *job) undone(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
	case j.broke != nil:
		return j.broke.public
	case j.refused != nil && j.refused.Firm: // truer than that there is no replica for it now
		return j.refusal()
	}
	return err
}

// toEngine is what the chosen replica is asked for: the client's request, or the rest of its answer.
func (r *Router) toEngine(ctx context.Context, j *job) *upstream.Request {
	out := &upstream.Request{
		Method: j.method(), Path: j.path(), Query: j.call.RawQuery,
		Header: j.header(), Client: j.call.Client, RequestID: j.call.RequestID, ContentType: j.call.ContentType,
	}
	if j.seam != nil {
		out.Path, out.Query = openai.RouteCompletions.Path(), ""
		out.Body = j.req.Continuation(j.pool.Served, j.seam.IDs, r.rest(j, j.seam, j.choice.Replica))
		return out
	}
	out.Body = r.outgoing(ctx, j)
	if j.upload != nil {
		j.upload.into(out)
	}
	return out
}

// conclude writes the end of a stream that broke off after its finish reason. It is false where more
// is missing.
func (r *Router) conclude(ctx context.Context, j *job, err error, to Sink) bool {
	if j.follower == nil || !j.begun || errors.Is(err, errClientGone) || ctx.Err() != nil {
		return false
	}
	end, ok := j.follower.Ending()
	if !ok || to.Write(end) != nil {
		return false
	}
	j.scan.Feed(end)
	r.metrics.resumed(resultEnded)
	return true
}

// errContinuation is an answer to a continuation that is no stream.
var errContinuation = errors.New("the continuation is not streamed")

// followed is what the answer goes through on its way to the client; nil for most.
func (j *job) followed(streamed bool) (*resume.Follower, error) {
	switch {
	case j.follower == nil || streamed:
		return j.follower, nil
	case j.seam != nil:
		return nil, errContinuation
	}
	j.follower.Lose(resume.LostForm)
	return nil, nil
}

// earlier counts the content events that the client has of other replicas.
func (j *job) earlier() int {
	if j.seam == nil {
		return 0
	}
	return j.scan.ContentEvents()
}
