package grpcapi

import (
	"context"
	"errors"
	"strconv"
	"time"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// retryTokenize is when a caller may ask again that no tokenizer could answer.
const retryTokenize = time.Second

func (s *routing) Tokenize(ctx context.Context, in *kvpilotv1.TokenizeRequest) (*kvpilotv1.TokenizeResponse, error) {
	if b := in.GetBody(); b != nil {
		if in.AddSpecialTokens != nil {
			return nil, invalid("add_special_tokens", "must not be set with a body, whose own add_special_tokens counts")
		}
		return s.tokenizeBody(ctx, in.GetModel(), b)
	}
	pool, err := s.api.pool(in.GetModel())
	if err != nil {
		return nil, err
	}
	p := &prompt.Prompt{Kind: prompt.KindText, API: prompt.APICompletions, Model: pool.Served, Adapter: pool.Adapter, Text: in.GetText()}
	if list := in.GetTexts().GetTexts(); list != nil {
		p.Kind, p.Text, p.Texts = prompt.KindBatch, list[0], list
	}
	if in.AddSpecialTokens != nil {
		p.Fields = []prompt.Field{{Name: "add_special_tokens", Value: []byte(strconv.FormatBool(in.GetAddSpecialTokens()))}}
	}
	enc, err := s.api.Tokens.Tokenize(ctx, tokenizer.Request{Prompt: p, Pool: pool.Served, Replicas: pool.Replicas})
	if err != nil {
		return nil, tokenizeError(ctx, err)
	}
	return tokenized(enc), nil
}

// tokenizeBody lets the router read the body, as it would to answer it.
func (s *routing) tokenizeBody(ctx context.Context, model string, b *kvpilotv1.RequestBody) (*kvpilotv1.TokenizeResponse, error) {
	q := s.api.question(ctx)
	q.Model = model
	setBody(q, b)
	a, err := s.api.Router.Encode(ctx, q)
	if err != nil {
		return nil, err
	}
	return tokenized(a.Encoding), nil
}

func tokenized(enc *tokenizer.Encoding) *kvpilotv1.TokenizeResponse {
	out := &kvpilotv1.TokenizeResponse{MaxModelLen: uint32(max(enc.MaxLen, 0)), Source: string(enc.Source)}
	lists := enc.Batch
	if len(lists) == 0 {
		lists = [][]uint32{enc.IDs}
	}
	for _, list := range lists {
		out.Sequences = append(out.Sequences, &kvpilotv1.TokenSequence{TokenIds: &kvpilotv1.TokenIds{Ids: list}, Count: uint32(len(list))})
	}
	return out
}

func (s *routing) Detokenize(ctx context.Context, in *kvpilotv1.DetokenizeRequest) (*kvpilotv1.DetokenizeResponse, error) {
	pool, err := s.api.pool(in.GetModel())
	if err != nil {
		return nil, err
	}
	lists := make([][]uint32, len(in.GetSequences()))
	for i, seq := range in.GetSequences() {
		lists[i] = seq.GetIds()
	}
	texts, err := s.api.Tokens.DetokenizeBatch(ctx, pool.Replicas, pool.Served, lists)
	if err != nil {
		return nil, tokenizeError(ctx, err)
	}
	return &kvpilotv1.DetokenizeResponse{Texts: texts}, nil
}

// tokenizeError separates the client's fault from the tokenizer's.
func tokenizeError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return apierror.From(ctx.Err())
	}
	if fault, ok := errors.AsType[*tokenizer.ClientFault](err); ok {
		return apierror.Upstream(fault.Status, fault.ContentType, fault.Body)
	}
	if errors.Is(err, tokenizer.ErrUnavailable) {
		return apierror.New(apierror.UpstreamError, "no replica could tokenize now", err, apierror.WithRetryAfter(retryTokenize))
	}
	return err
}

// pool finds the replicas of a model; no name means the only model there is.
func (a *API) pool(model string) (*registry.Pool, error) {
	snapshot := a.Registry.Snapshot()
	if model == "" {
		pool, ok := snapshot.Unnamed()
		if !ok {
			return nil, invalid("model", "is missing, and the router does not serve exactly one model."+snapshot.KnownModels())
		}
		return pool, nil
	}
	pool, ok := snapshot.Pool(model)
	if !ok {
		return nil, apierror.New(apierror.ModelNotFound, snapshot.UnknownModel(model), nil, apierror.WithParam("model"))
	}
	return pool, nil
}
