package intake

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
type encoder struct {
	tokens    *tokenizer.Pool
	directory Directory // nil: none
}

// tokenize gets the prompt's token ids. Only the client's own fault is an error: a tokenizer that
// is down, slow or wrong, or a body without a prompt, leaves the request without ids, for a reason. So does a
// refusal that the route which generates may not share, or may word otherwise: the engine decides.
func (en *encoder) tokenize(ctx context.Context, rq *Request) error {
	if !rq.Call.Route.Generates() {
		return nil
	}
	began := time.Now()
	tctx, cancel := context.WithTimeout(ctx, rq.Settings.TokenizeTimeout)
	defer cancel()
	ask := rq.EncodeRequest()
	ask.Keep, ask.Namespace = rq.keepsIDs(), rq.Namespace()
	if en.directory != nil && rq.mayLookUp() && en.directory.Asks(rq.Pool.Replicas) {
		ask.Keep = math.MaxInt
	}
	ask.Span = rq.Story.Plan()
	ask.SizeOnly = !rq.wantsIDs() && rq.Chat == nil && !rq.Policies.ReadsCache(rq.Pool.Model, &rq.Call.Options)
	enc, err := en.tokens.Encode(tctx, ask)
	rq.Tokenizing = time.Since(began)
	if fault, ok := errors.AsType[*tokenizer.ClientFault](err); ok && ctx.Err() == nil {
		rq.Refused = fault
		if !rq.surfaces(fault) {
			err = nil
		}
	}
	rq.Story.Tokens(ask.Span, began, rq.Tokenizing, enc, err)
	switch {
	case err == nil:
		rq.Enc = enc
		if given := &rq.Parsed.Prompt; len(enc.IDs) == 0 && !enc.Partial && (given.IDs != nil || given.Batch != nil) {
			given.IDs, given.Batch = nil, nil // as dispensable as those that were found; work behind a partial answer reads the prompt
		}
		return nil
	case ctx.Err() != nil:
		return apierror.From(Cause(ctx, err))
	case rq.Refused != nil:
		return rq.Refusal()
	}
	return apierror.From(err)
}

// keepsIDs is the length up to which the prompt's ids are read after they were found.
func (rq *Request) keepsIDs() int {
	switch {
	case rq.Question != nil && rq.Question.ReturnIDs:
		return math.MaxInt
	case rq.mayFollow():
		return resume.MaxTokens
	}
	return 0
}
