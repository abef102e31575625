package tokenizer

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/cache"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote"
)

// ErrUnavailable says that no tokenizer could answer now; the wrapped error says why.
var ErrUnavailable = errors.New("no tokenizer is available")

// Tokenize returns all ids of the prompt, of every prompt of a batch. Unlike Encode it has no
// weaker answer to give: it fails with a *ClientFault or with ErrUnavailable.
func (p *Pool) Tokenize(ctx context.Context, req Request) (*Encoding, error) {
	req.NeedFull = true
	if req.Prompt.Kind == prompt.KindBatch {
		return p.tokenizeBatch(ctx, req)
	}
	enc, err := p.Encode(ctx, req)
	switch {
	case err != nil:
		return nil, err
	case enc.Source == SourceNone && enc.Reason != ReasonEmpty && enc.Reason != ReasonNoPrompt:
		return nil, &unavailable{reason: enc.Reason}
	}
	return enc, nil
}

// tokenizeBatch encodes each text of a batch by itself, so that each is found in the cache.
func (p *Pool) tokenizeBatch(ctx context.Context, req Request) (*Encoding, error) {
	pr := req.Prompt
	all := make([][]uint32, len(pr.Texts))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(batchAtOnce)
	for i, text := range pr.Texts {
		g.Go(func() error {
			one := *pr
			one.Kind, one.Text, one.Texts, one.Body = prompt.KindText, text, nil, nil
			sub := req
			sub.Prompt = &one
			enc, err := p.Tokenize(ctx, sub)
			if err == nil {
				all[i] = enc.IDs
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	enc := &Encoding{IDs: all[0], Batch: all, Source: SourceTokenize, Exact: true, prompt: pr}
	for _, ids := range all {
		enc.Tokens += len(ids)
	}
	return enc, nil
}

// unavailable is ErrUnavailable with a reason.
type unavailable struct{ reason string }

func (u *unavailable) Error() string { return ErrUnavailable.Error() + ": " + u.reason }

func (u *unavailable) Is(target error) bool { return target == ErrUnavailable }

// Detokenize returns the text of ids, as a replica's /detokenize gives it.
func (p *Pool) Detokenize(ctx context.Context, replicas []*replica.Replica, model string, ids []uint32) (string, error) {
	key := p.mem.keyer.ids(model, ids)
	if text := p.mem.texts.Get(key); text != nil {
		return *text, nil
	}
	a, err := p.asker.remote.Do(ctx, replicas, &remote.Job{Op: remote.OpDetokenize, Model: model, IDs: ids})
	if err != nil {
		var refusal *ClientFault
		if errors.As(err, &refusal) {
			return "", refusal
		}
		return "", &unavailable{reason: string(remote.KindOf(err))}
	}
	p.mem.texts.Put(key, &a.Text, len(a.Text))
	return a.Text, nil
}

// DetokenizeBatch returns the texts of several lists of ids.
func (p *Pool) DetokenizeBatch(ctx context.Context, replicas []*replica.Replica, model string, lists [][]uint32) ([]string, error) {
	texts := make([]string, len(lists))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(batchAtOnce)
	for i, ids := range lists {
		g.Go(func() error {
			text, err := p.Detokenize(ctx, replicas, model, ids)
			texts[i] = text
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return texts, nil
}

// ids names a list of ids of a model.
func (k keyer) ids(model string, ids []uint32) cache.Key {
	return k.mix(k.sum([]byte(model)), k.sum(idBytes(slices.Clip(ids))))
}
