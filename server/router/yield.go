package router

import (
	"context"
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/chooser"
	"github.com/kvpilot/kvpilot/server/openai"
	"github.com/kvpilot/kvpilot/server/span"
	"github.com/kvpilot/kvpilot/server/upstream"
)

// errYielded is why an attempt's context ended: the request gave way to a shorter one.
var errYielded = errors.New("gave way to a shorter request")

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

// yielding puts into ask how the request is told to give way: the context that it returns ends with
// errYielded. done must be called when the attempt is over.
func (j *job) yielding(ctx context.Context, ask *chooser.Request) (_ context.Context, done context.CancelCauseFunc) {
	ask.Yield = nil
	if !j.mayYield() {
		return ctx, func(error) {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	ask.Yield = func() { cancel(errYielded) }
	return ctx, cancel
}

// yielded waits for the word to reach ctx, where the choice has given way already: telling is the
// last thing that the chooser does.
func yielded(ctx context.Context) error {
	<-ctx.Done()
	return errYielded
}

// gaveWay reports whether an attempt under ctx ended because the request gave way.
func gaveWay(ctx context.Context, outcome upstream.Outcome) bool {
	return outcome == upstream.OutcomeCanceled && errors.Is(context.Cause(ctx), errYielded)
}

// resume prepares the attempt by which a request goes on that gave way.
func (j *job) resume(ctx context.Context) {
	span.Note(ctx, span.EventYield, span.Replica.String(string(j.choice.Replica.ID)), span.Attempt.Int(j.attempt))
	j.asked.Resumes = j.choice
	j.before += j.held + time.Since(j.chosen)
	j.choice = nil
	j.attempt++
	j.yields++
}
