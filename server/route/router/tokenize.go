package router

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// encoder gets the token ids of prompts.
type encoder struct{ tokens *tokenizer.Pool }

// tokenize gets the prompt's token ids. Only the client's own fault is an error: a tokenizer that
// is down, slow or wrong, or a body without a prompt, leaves the request without ids, for a reason. So does a
// refusal that the route which generates may not share, or may word otherwise: the engine decides.
func (en *encoder) tokenize(ctx context.Context, rq *request) error {
	if !rq.call.Route.Generates() {
		return nil
	}
	began := time.Now()
	tctx, cancel := context.WithTimeout(ctx, rq.set.TokenizeTimeout)
	defer cancel()
	ask := rq.encodeRequest()
	ask.Keep, ask.Namespace = rq.keepsIDs(), rq.namespace()
	ask.Span = rq.story.Plan()
	ask.SizeOnly = !rq.wantsIDs() && rq.chat == nil && !rq.policies.ReadsCache(rq.pool.Model, &rq.call.Options)
	enc, err := en.tokens.Encode(tctx, ask)
	rq.tokenizing = time.Since(began)
	if fault, ok := errors.AsType[*tokenizer.ClientFault](err); ok && ctx.Err() == nil {
		rq.refused = fault
		if !rq.surfaces(fault) {
			err = nil
		}
	}
	rq.story.Tokens(ask.Span, began, rq.tokenizing, enc, err)
	switch {
	case err == nil:
		rq.enc = enc
		if given := &rq.parsed.Prompt; len(enc.IDs) == 0 && !enc.Partial && (given.IDs != nil || given.Batch != nil) {
			given.IDs, given.Batch = nil, nil // as dispensable as those that were found; work behind a partial answer reads the prompt
		}
		return nil
	case ctx.Err() != nil:
		return apierror.From(cause(ctx, err))
	case rq.refused != nil:
		return rq.refusal()
	}
	return apierror.From(err)
}

// keepsIDs is the length up to which the prompt's ids are read after they were found.
func (rq *request) keepsIDs() int {
	switch {
	case rq.question != nil && rq.question.ReturnIDs:
		return math.MaxInt
	case rq.mayFollow():
		return resume.MaxTokens
	}
	return 0
}
