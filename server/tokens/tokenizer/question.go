package tokenizer

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/kit/cache"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/parity"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote"
)

// full asks a replica for all ids and remembers them; k is the known beginning or nil.
func (p *Pool) full(ctx context.Context, req Request, m *model, key cache.Key, k *known) (*entry, Source, error) {
	pr := req.Prompt
	job := p.job(pr, m)
	job.Native = req.native
	if job.Native == pr {
		job.Prompt = nil
	}
	a, err := p.ask(ctx, req, job)
	if err != nil {
		return nil, "", err
	}
	e := newEntry(a.IDs[0])
	e.media, e.maxLen, e.rendered = a.Media, a.MaxLen, a.Rendered
	if pr.Kind == prompt.KindBatch {
		if e.batch, err = p.batch(ctx, req, a); err != nil {
			return nil, "", err
		}
	}
	m.learnRatio(len(pr.Text)+messagesSize(pr), len(e.ids))
	if err := truncate(pr, e); err != nil {
		return nil, "", err
	}
	if k != nil {
		e.inherit(k.entry, parity.CommonPrefix(k.entry.ids, e.ids))
		e.prev = k.key
	}
	source := SourceTokenize
	if a.Rendered {
		source = SourceRender
	}
	if cacheable(pr) {
		p.cache.Put(key, e, e.bytes())
	}
	return e, source, nil
}

const (
	// batchCalls bounds the calls made for the prompts of a batch behind the first one, and
	// batchAtOnce how many of them run side by side.
	batchCalls  = 16
	batchAtOnce = 4
)

// ask puts one question to the replicas, under a span of its own.
func (p *Pool) ask(ctx context.Context, req Request, j *remote.Job) (*remote.Answer, error) {
	ctx, sp := span.StartAt(ctx, p.tracer, span.TokenizeRPC, trace.SpanKindClient, req.Span, time.Time{})
	defer sp.End()
	j.Tenant = req.Tenant
	a, err := p.remote.Do(ctx, req.Replicas, j)
	if err != nil {
		noteFailure(sp, err)
		return nil, err
	}
	if sp.IsRecording() && len(a.IDs) > 0 {
		span.Set(sp, span.Replica.String(string(a.Replica)), span.PromptTokens.Int(len(a.IDs[0])))
	}
	return a, nil
}

// noteFailure puts the kind of err on the span of a call. The span fails only for what is not the client's doing: a failed span has
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
func (p *Pool) batch(ctx context.Context, req Request, a *remote.Answer) ([][]uint32, error) {
	texts := req.Prompt.Texts
	if len(a.IDs) == len(texts) {
		return a.IDs, nil
	}
	if len(texts) > batchCalls {
		return nil, nil
	}
	all := make([][]uint32, len(texts))
	all[0] = a.IDs[0]
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(batchAtOnce)
	for i := 1; i < len(texts); i++ {
		g.Go(func() error {
			job := &remote.Job{Op: remote.OpText, Model: req.Prompt.Model, Tenant: req.Tenant, Text: texts[i]}
			if raw := req.Prompt.Field("add_special_tokens"); string(raw) == "false" {
				job.Special = new(bool)
			}
			one, err := p.remote.Do(ctx, req.Replicas, job)
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
