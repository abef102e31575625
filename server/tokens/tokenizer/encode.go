package tokenizer

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"
	"unsafe"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/kit/cache"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/convert"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote"
)

// Encode returns the ids of the prompt, or the known ones; its caller calls Release when the request has ended. The error is nil, or a
// *ClientFault with which a tokenizer route refused the prompt; the route that generates may take it all the same, so there is an
// Encoding along with the error. All else is an Encoding with SourceNone and a Reason.
func (p *Pool) Encode(ctx context.Context, req Request) (*Encoding, error) {
	start := time.Now()
	enc, err := p.encode(ctx, req)
	if err != nil {
		p.metrics.encoded(req.Pool, "client_fault", ReasonRefused, time.Since(start))
		return none(req.Prompt, ReasonRefused, p.models.of(req.Pool).estimate(textSize(req.Prompt))), err
	}
	if !req.NeedFull {
		enc = p.keep(&req, enc, p.models.of(req.Pool))
	}
	p.metrics.encoded(req.Pool, string(enc.Source), enc.Reason, time.Since(start))
	return enc, nil
}

func (p *Pool) encode(ctx context.Context, req Request) (*Encoding, error) {
	m := p.models.of(req.Pool)
	pr := req.Prompt
	switch pr.Kind {
	case prompt.KindNone:
		return none(pr, ReasonNoPrompt, m.estimate(len(pr.Body))), nil
	case prompt.KindIDs, prompt.KindBatchIDs:
		return fromBody(pr, contextOf(req)), nil
	case prompt.KindText, prompt.KindBatch, prompt.KindChat:
	}
	if req.SizeOnly {
		return none(pr, ReasonNotRead, m.estimate(textSize(pr))), nil
	}
	if !p.cfg.Enabled {
		return none(pr, ReasonDisabled, m.estimate(textSize(pr))), nil
	}
	body := p.mem.bodyKey(req, m)
	if e := p.mem.recallBody(body, req, m); e != nil {
		return fromEntry(pr, e, SourceExactCache, m), nil
	}
	if remote.Native(pr) {
		req.native = pr
	}
	pr, ok := prepared(pr)
	switch {
	case !ok && req.native != nil:
		return p.natively(ctx, req, m)
	case !ok:
		return none(req.Prompt, ReasonUnmappable, m.estimate(textSize(req.Prompt))), nil
	}
	req.Prompt = pr
	if pr.Partial {
		return p.cut(ctx, req, m)
	}
	return p.text(ctx, req, m, body)
}

// cutTries is how many of the messages at the end of a cut conversation may be left out.
const cutTries = 3

// cut encodes the beginning that is there of a prompt that is cut. A template may refuse a conversation that ends where the
// cut left it: the part in front of the cut message is tried then. No refusal of a cut prompt is the client's fault.
func (p *Pool) cut(ctx context.Context, req Request, m *model) (*Encoding, error) {
	whole := req.Prompt
	for range cutTries {
		enc, err := p.text(ctx, req, m, cache.Key{})
		if err == nil {
			enc.cutShort()
			enc.Tokens = max(enc.Tokens, m.estimate(textSize(whole)))
			return enc, nil
		}
		pr := *req.Prompt
		if pr.Kind != prompt.KindChat || len(pr.Messages) < 2 {
			break
		}
		pr.Messages = pr.Messages[:len(pr.Messages)-1]
		req.Prompt = &pr
	}
	return none(whole, ReasonRefused, m.estimate(textSize(whole))), nil
}

// firm reports whether the route that generates can be expected to refuse a prompt that a tokenizer route refused.
// It cannot where the question was not the client's own body, where that body is not read by those routes
// as by the route that generates, or where the fault is the route's or the model's name.
func firm(pr *prompt.Prompt, f *ClientFault) bool {
	if f.Status != http.StatusBadRequest && f.Status != http.StatusUnprocessableEntity || pr.Body == nil || pr.Partial {
		return false
	}
	if pr.API != prompt.APIChat && pr.API != prompt.APICompletions || bytes.Contains(f.Body, []byte("render endpoint")) {
		return false
	}
	return rawjson.IsNull(rawjson.Member(pr.Body, "kv_transfer_params")) && rawjson.IsNull(pr.Field("use_beam_search"))
}

// prepared gives the form of the prompt that the tokenizer's routes take, or false when there is
// no exact one.
func prepared(pr *prompt.Prompt) (*prompt.Prompt, bool) {
	pr, ok := convert.Chat(pr)
	if !ok || !pr.Partial && pr.API != prompt.APIOther {
		return pr, ok
	}
	// The body is cut, or belongs to another route: the part that was read stands for itself.
	alone := *pr
	alone.Body, alone.Digest = nil, prompt.Digest{}
	if pr.Partial && pr.Kind == prompt.KindChat {
		alone.Fields = append(slices.Clip(pr.Fields), prompt.Field{Name: "add_generation_prompt", Value: []byte("false")})
	}
	return &alone, true
}

// natively encodes a prompt that has no exact chat form, by a route for its own format.
func (p *Pool) natively(ctx context.Context, req Request, m *model) (*Encoding, error) {
	pr := req.native
	key := p.mem.keyer.mix(p.mem.keyer.base(pr, req.Replicas, m.generation.Load()), p.mem.keyer.sum(pr.Body))
	if e := p.mem.lookup(key, m); e != nil {
		return fromEntry(pr, e, SourceExactCache, m), nil
	}
	e, source, shared, err := p.flights.wait(ctx, key, func(ctx context.Context) (*entry, Source, error) {
		return p.completer.full(ctx, req, m, key, nil)
	})
	if shared {
		p.metrics.Shared.Add(ctx, 1)
	}
	if err != nil {
		return p.failed(pr, m, err)
	}
	return fromEntry(pr, e, source, m), nil
}

// text encodes a prompt that is text; body is the key of the body that it came in, zero when unknown.
func (p *Pool) text(ctx context.Context, req Request, m *model, body cache.Key) (*Encoding, error) {
	pr := req.Prompt
	scratch := p.scratch.Get().(*[]cache.Key)
	defer p.scratch.Put(scratch)
	ks := p.mem.keyer.of(pr, req.Replicas, m.generation.Load(), *scratch)
	*scratch = ks.upTo
	if e := p.mem.lookup(ks.exact, m); e != nil && (!e.derived || !req.NeedFull) {
		if body != (cache.Key{}) {
			exact := ks.exact
			p.mem.bodies.Put(body, &exact, 0)
		}
		return fromEntry(pr, e, SourceExactCache, m), nil
	}
	var k *known
	if p.completer.conversational(pr) {
		k = p.completer.recall(pr, ks, m)
	}
	mine := keys{base: ks.base, exact: ks.exact}
	if len(ks.upTo) > 0 {
		mine.upTo = []cache.Key{ks.upTo[0]} // the part that work behind the answer needs; the rest is reused
	}
	all := func(ctx context.Context) (*entry, Source, error) { return p.completer.complete(ctx, req, m, mine, k) }
	if k != nil && !req.NeedFull {
		w := waiting{req: req, model: m, key: ks.exact, patience: p.worthwhile(pr, ks, k, m)}
		if k.stable == 0 || w.patience > 0 {
			return p.waitOrBegin(ctx, w, k, all)
		}
		enc := k.begun(pr, m, ks.exact)
		enc.later = new(later)
		p.background.behind(ctx, ks.exact, p.notifying(enc.later, &req, m, all))
		return enc, nil
	}
	way := ks.exact
	if req.NeedFull {
		way = p.mem.keyer.mix(way, cache.Key{Hi: 4}) // a flight without NeedFull may end with derived ids
	}
	e, source, shared, err := p.flights.wait(ctx, way, all)
	if shared {
		p.metrics.Shared.Add(ctx, 1)
	}
	if err != nil {
		return p.failed(pr, m, err)
	}
	return fromEntry(pr, e, source, m), nil
}

// notifying is the work that hands its result to l.
func (p *Pool) notifying(l *later, req *Request, m *model, do work) work {
	pr, ns, replicas := req.Prompt, req.Namespace, req.Replicas
	return func(ctx context.Context) (*entry, Source, error) {
		e, source, err := do(ctx)
		if err == nil {
			whole := fromEntry(pr, e, source, m)
			if whole.remains = (remains{sizes: &m.sizes, ns: ns}); !whole.wanted(0) {
				whole.letGo(replicas)
			}
			l.set(whole)
		}
		return e, source, err
	}
}

// failed turns an error of the way to the ids into an answer.
func (p *Pool) failed(pr *prompt.Prompt, m *model, err error) (*Encoding, error) {
	if refusal, ok := errors.AsType[*ClientFault](err); ok {
		judged := *refusal // others may have waited for the same answer
		judged.Firm = firm(pr, refusal)
		return nil, &judged
	}
	reason := string(remote.KindOf(err))
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		reason = string(remote.KindTimeout)
	case errors.Is(err, context.Canceled):
		reason = string(remote.KindCancelled)
	}
	return none(pr, reason, m.estimate(textSize(pr))), nil
}

// fromBody takes the ids that the client gave; maxLen is the model's context, 0 when unknown.
func fromBody(pr *prompt.Prompt, maxLen int) *Encoding {
	e := newEntry(pr.IDs)
	e.maxLen = maxLen
	if pr.Kind == prompt.KindBatchIDs && len(pr.Batch) > 0 {
		e.settle(pr.Batch[0])
		e.batch = pr.Batch
		if pr.Truncate != 0 {
			e.batch = slices.Clone(pr.Batch)
		}
	}
	longest, total := e.lengths()
	if !pr.Partial && !untouched(pr, longest, maxLen) && truncate(pr, e) != nil {
		return none(pr, ReasonUnmappable, total)
	}
	_, total = e.lengths()
	enc := &Encoding{IDs: e.ids, Batch: e.batch, Source: SourceBody, Tokens: total, Exact: true, given: e, names: e.names, prompt: pr}
	if len(enc.IDs) == 0 {
		return none(pr, ReasonEmpty, 0)
	}
	enc.Partial, enc.Exact = pr.Partial, !pr.Partial
	return enc
}

func fromEntry(pr *prompt.Prompt, e *entry, source Source, m *model) *Encoding {
	if len(e.ids) == 0 { // the text still costs its replica something
		return none(pr, ReasonEmpty, m.estimate(textSize(pr)))
	}
	enc := &Encoding{
		IDs: e.ids, Batch: e.batch, Media: e.media, Source: source, Tokens: len(e.ids), Exact: true,
		MaxLen: e.maxLen, entry: e, names: e.names, prompt: pr,
	}
	if pr.Kind == prompt.KindBatch {
		if enc.Tokens, enc.Exact = 0, e.batch != nil; enc.Exact {
			for _, ids := range e.batch {
				enc.Tokens += len(ids)
			}
		} else {
			enc.Tokens = m.estimate(textSize(pr))
		}
	}
	return enc
}

func none(pr *prompt.Prompt, reason string, estimate int) *Encoding {
	return &Encoding{Source: SourceNone, Reason: reason, Tokens: estimate, prompt: pr}
}

func messagesSize(pr *prompt.Prompt) int {
	n := 0
	for _, m := range pr.Messages {
		n += len(m)
	}
	return n
}

// textSize is the size of everything that becomes tokens.
func textSize(pr *prompt.Prompt) int {
	switch pr.Kind {
	case prompt.KindBatch:
		n := 0
		for _, t := range pr.Texts {
			n += len(t)
		}
		return n
	case prompt.KindChat:
		return messagesSize(pr) + len(pr.Field("tools"))
	case prompt.KindText, prompt.KindNone, prompt.KindIDs, prompt.KindBatchIDs:
	}
	return len(pr.Text)
}

// idBytes looks at ids as bytes without a copy; only for hashes that stay in the process.
func idBytes(ids []uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(ids))), 4*len(ids))
}

// bytesOf looks at a string's bytes without a copy.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
