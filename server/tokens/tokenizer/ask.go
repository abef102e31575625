package tokenizer

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote"
)

// asker puts questions to the replicas. Package remote chooses one, hedges and bounds the calls.
type asker struct {
	remote *remote.Pool
	tracer trace.Tracer
}

const (
	// batchCalls bounds the calls made for the prompts of a batch behind the first one, and
	// batchAtOnce how many of them run side by side.
	batchCalls  = 16
	batchAtOnce = 4
)

// ask puts one question to the replicas, under a span of its own.
func (a *asker) ask(ctx context.Context, req Request, j *remote.Job) (*remote.Answer, error) {
	ctx, sp := span.StartAt(ctx, a.tracer, span.TokenizeRPC, trace.SpanKindClient, req.Span, time.Time{})
	defer sp.End()
	j.Tenant = req.Tenant
	answer, err := a.remote.Do(ctx, req.Replicas, j)
	if err != nil {
		noteFailure(sp, err)
		return nil, err
	}
	if sp.IsRecording() && len(answer.IDs) > 0 {
		span.Set(sp, span.Replica.String(string(answer.Replica)), span.PromptTokens.Int(len(answer.IDs[0])))
	}
	return answer, nil
}

// noteFailure puts the kind of err on the span of a call. The span fails only for faults that are not the client's: a failed span has
// its whole trace kept.
func noteFailure(sp trace.Span, err error) {
	kind := string(remote.KindOf(err))
	if _, refused := errors.AsType[*ClientFault](err); refused {
		kind = "client_fault"
	}
	if kind == "client_fault" || kind == string(remote.KindCancelled) {
		span.Set(sp, span.ErrorType.String(kind))
		return
	}
	span.Fail(sp, kind, "no token ids were obtained")
}

// batch gives the ids of all prompts of a batch; nil when that would cost too many calls.
func (a *asker) batch(ctx context.Context, req Request, first *remote.Answer) ([][]uint32, error) {
	texts := req.Prompt.Texts
	if len(first.IDs) == len(texts) {
		return first.IDs, nil
	}
	if len(texts) > batchCalls {
		return nil, nil
	}
	all := make([][]uint32, len(texts))
	all[0] = first.IDs[0]
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(batchAtOnce)
	for i := 1; i < len(texts); i++ {
		g.Go(func() error {
			job := &remote.Job{Op: remote.OpText, Model: req.Prompt.Model, Tenant: req.Tenant, Text: texts[i]}
			if raw := req.Prompt.Field("add_special_tokens"); string(raw) == "false" {
				job.Special = new(bool)
			}
			one, err := a.remote.Do(ctx, req.Replicas, job)
			if err == nil {
				all[i] = one.IDs[0]
			}
			return err
		})
	}
	var refusal *ClientFault
	if err := g.Wait(); errors.As(err, &refusal) {
		return nil, err
	} else if err != nil {
		return nil, nil // the first prompt's ids are enough to route by
	}
	return all, nil
}
