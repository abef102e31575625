package grpcapi

import (
	"context"
	"errors"
	"strconv"
	"time"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// retryTokenize is when a caller may ask again that no tokenizer could answer.
const retryTokenize = time.Second

// tokens turns texts into token ids and back.
type tokens struct {
	router choosing
	calls  calls
	pools  pools
	pool   *tokenizer.Pool
}

func (s *tokens) Tokenize(ctx context.Context, in *kvpilotv1.TokenizeRequest) (*kvpilotv1.TokenizeResponse, error) {
	if b := in.GetBody(); b != nil {
		if in.AddSpecialTokens != nil {
			return nil, invalid("add_special_tokens", "must not be set with a body, whose own add_special_tokens counts")
		}
		return s.tokenizeBody(ctx, in.GetModel(), b)
	}
	pool, err := s.pools.pool(in.GetModel())
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
	enc, err := s.pool.Tokenize(ctx, tokenizer.Request{Prompt: p, Pool: pool.Served, Replicas: pool.Replicas})
	if err != nil {
		return nil, tokenizeError(ctx, err)
	}
	return tokenized(enc), nil
}

// tokenizeBody lets the router read the body, as it would to answer it.
func (s *tokens) tokenizeBody(ctx context.Context, model string, b *kvpilotv1.RequestBody) (*kvpilotv1.TokenizeResponse, error) {
	q := s.calls.question(ctx)
	q.Model = model
	setBody(q, b)
	a, err := s.router.Encode(ctx, q)
	if err != nil {
		return nil, err
	}
	return tokenized(a.Encoding), nil
}

func tokenized(enc *tokenizer.Encoding) *kvpilotv1.TokenizeResponse {
	out := &kvpilotv1.TokenizeResponse{MaxModelLen: uint32(max(enc.MaxLen, 0)), Source: tokenSourceProto(enc.Source)}
	lists := enc.Batch
	if len(lists) == 0 {
		lists = [][]uint32{enc.IDs}
	}
	for _, list := range lists {
		out.Sequences = append(out.Sequences, &kvpilotv1.TokenSequence{TokenIds: &kvpilotv1.TokenIds{Ids: list}, Count: uint32(len(list))})
	}
	return out
}

func (s *tokens) Detokenize(ctx context.Context, in *kvpilotv1.DetokenizeRequest) (*kvpilotv1.DetokenizeResponse, error) {
	pool, err := s.pools.pool(in.GetModel())
	if err != nil {
		return nil, err
	}
	lists := make([][]uint32, len(in.GetSequences()))
	for i, seq := range in.GetSequences() {
		lists[i] = seq.GetIds()
	}
	texts, err := s.pool.DetokenizeBatch(ctx, pool.Replicas, pool.Served, lists)
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
