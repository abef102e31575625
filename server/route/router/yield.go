package router

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// errYielded is why an attempt's context ended: the request gave way to a shorter one.
var errYielded = errors.New("preempted by a shorter request")

const (
	// maxYields bounds how often one request gives way.
	maxYields = 8
	// shortest is the number of prompt tokens from which a request may be asked to give way: less is
	// one step of an engine, which cannot be stopped.
	shortest = 4096
)

// mayYield reports whether the request may be taken back before its first byte and sent again at no
// loss: the engine keeps the prompt's blocks, and nothing but the blocks is left behind.
func (j *job) mayYield() bool {
	switch j.call.Route {
	case openai.RouteChat, openai.RouteCompletions, openai.RouteMessages:
	default:
		return false // the Responses API names an answer before it begins to compute it
	}
	return j.req.Stream && !j.begun && j.yields < maxYields && j.upload == nil && j.enc != nil && j.enc.Exact && j.enc.Tokens >= shortest &&
		!j.req.KVTransfer && !j.req.Present("prompt_logprobs") && !j.req.Present("echo")
}

// engineID names the attempt to the engine. What gave way may still be in a step there, and engines before
// 0.14 take two requests of one name for one: what they compute of the first would be given to the second.
func (j *job) engineID() string {
	if j.yields == 0 || j.call.RequestID == "" {
		return j.call.RequestID
	}
	return j.call.RequestID + "-" + strconv.Itoa(j.yields)
}

// recallable puts into ask how the request is told to give way, or to leave a rank that shows no sign of life: the
// context that it returns ends with errYielded or errStalled. done must be called when the attempt is over.
func (j *job) recallable(ctx context.Context, ask *chooser.Request, r *Router) (_ context.Context, done context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	ask.Yield = nil
	if j.mayYield() {
		ask.Yield = func() { cancel(errYielded) }
	}
	ask.Abandon, ask.Movable = func() { cancel(errStalled) }, r.mayMove(j)
	return ctx, cancel
}

// recalled waits for the word to reach ctx, where the choice was taken back already: telling is the
// last thing that the chooser does.
func recalled(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// gaveWay reports whether an attempt under ctx ended because the request gave way.
func gaveWay(ctx context.Context, outcome retry.Verdict) bool {
	return outcome == retry.Canceled && errors.Is(context.Cause(ctx), errYielded)
}

// letPass waits until the engine has the request that overtook this one: sent at the same moment, this one
// might come first after all. Nothing is lost meanwhile, since the engine is in a step that it cannot
// stop; of those who do not show that they have come (an answer in one piece, a request that others
// send) it is believed when half a full step has passed.
func (j *job) letPass(ctx context.Context) {
	half := time.NewTimer(time.Duration(j.choice.Decision.Pick().FullStep / 2 * float64(time.Second)))
	defer half.Stop()
	select {
	case <-j.choice.Behind():
	case <-half.C:
	case <-ctx.Done():
	}
}

// resume prepares the attempt by which a request goes on that gave way.
func (j *job) resume(ctx context.Context) {
	j.letPass(ctx)
	span.Note(ctx, span.EventYield, span.Replica.String(string(j.choice.Replica.ID)), span.Attempt.Int(j.attempt))
	j.asked.Resumes = j.choice
	j.before += j.held + time.Since(j.chosen)
	j.choice = nil
	j.attempt++
	j.yields++
}
