package enginesim

import (
	"cmp"
	"encoding/binary"
	"math"
	"net/http"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// poolingRequest is every route that computes a prompt and generates nothing.
type poolingRequest struct {
	sampling
	Input      jsontext.Value  `json:"input"`
	Messages   []vocab.Message `json:"messages"`
	Dimensions int             `json:"dimensions"`

	Text1     jsontext.Value `json:"text_1"`
	Text2     jsontext.Value `json:"text_2"`
	Queries   jsontext.Value `json:"queries"`
	Items     jsontext.Value `json:"items"`
	Query     string         `json:"query"`
	Documents jsontext.Value `json:"documents"`
	TopN      int            `json:"top_n"`
}

// pooler serves the routes that compute prompts and generate nothing.
type pooler struct {
	*dialect
	computer
}

// computer runs prompts through the engine.
type computer interface {
	answer(c *call, s *sampling, prefix string, prompts []promptIDs, write func(*generation) bool)
	requestID(r *http.Request, fromBody string) string
}

// embeddingSize is the length of the made-up vectors.
const embeddingSize = 32

// inputs reads a string, ids, or a list of either.
func (d *dialect) inputs(raw jsontext.Value) [][]uint32 {
	list, bad := d.readPrompts(raw, true)
	if bad != nil {
		return nil
	}
	ids := make([][]uint32, 0, len(list))
	for _, p := range list {
		ids = append(ids, p.ids)
	}
	return ids
}

// compute runs the prompts through the engine; false: an error was answered, or the client left.
func (p *pooler) compute(c *call, s *sampling, prompts [][]uint32) (tokens int, ok bool) {
	if bad := p.known(&s.Model); bad != nil {
		p.fail(c, *bad)
		return 0, false
	}
	if len(prompts) == 0 {
		p.fail(c, missingField("input"))
		return 0, false
	}
	zero := 0
	s.MaxTokens, s.MaxCompletionTokens, s.N = &zero, nil, nil // these routes know no choices
	list := make([]promptIDs, 0, len(prompts))
	for _, ids := range prompts {
		tokens += len(ids)
		list = append(list, promptIDs{ids: ids})
	}
	p.answer(c, s, "pool-", list, func(g *generation) bool {
		ok = g.finished()
		return ok
	})
	return tokens, ok
}

// pooled answers a route with one item for each prompt; prompts takes them from the request, and its error has been
// answered when it is false.
func (p *pooler) pooled(c *call, prefix string, prompts func(*poolingRequest) ([][]uint32, bool), item func(*poolingRequest, []uint32) map[string]any) {
	var req poolingRequest
	if !p.read(c, &req) {
		return
	}
	list, ok := prompts(&req)
	if !ok {
		return
	}
	n, ok := p.compute(c, &req.sampling, list)
	if !ok {
		return
	}
	data := make([]map[string]any, 0, len(list))
	for i, ids := range list {
		d := item(&req, ids)
		d["index"] = i
		data = append(data, d)
	}
	c.reply(http.StatusOK, map[string]any{
		"id": prefix + p.requestID(c.r, ""), "object": "list", "model": req.Model, "data": data,
		"usage": map[string]any{"prompt_tokens": n, "total_tokens": n, "completion_tokens": 0, "prompt_tokens_details": nil},
	})
}

func (p *pooler) embeddings(c *call) {
	p.pooled(c, "embd-", func(req *poolingRequest) ([][]uint32, bool) {
		if req.Messages == nil {
			return p.inputs(req.Input), true
		}
		out, err := p.cfg.Vocabulary.Render(vocab.Chat{Messages: req.Messages})
		if err != nil {
			p.fail(c, *renderError(err))
		}
		return [][]uint32{out.IDs}, err == nil
	}, func(req *poolingRequest, ids []uint32) map[string]any {
		size := embeddingSize
		if req.Dimensions > 0 {
			size = req.Dimensions
		}
		return map[string]any{"object": "embedding", "embedding": vector(ids, size)}
	})
}

// input are the prompts of the routes that take nothing else.
func (d *dialect) input(req *poolingRequest) ([][]uint32, bool) { return d.inputs(req.Input), true }

func (p *pooler) pooling(c *call) {
	p.pooled(c, "pool-", p.input, func(_ *poolingRequest, ids []uint32) map[string]any {
		return map[string]any{"object": "pooling", "data": vector(ids, embeddingSize)}
	})
}

func (p *pooler) classify(c *call) {
	p.pooled(c, "classify-", p.input, func(_ *poolingRequest, ids []uint32) map[string]any {
		p, label := chance(ids), "LABEL_0"
		if p < 0.5 {
			label = "LABEL_1"
		}
		return map[string]any{"label": label, "probs": []float64{p, 1 - p}, "num_classes": 2}
	})
}

func (p *pooler) score(c *call) {
	p.pooled(c, "score-", func(req *poolingRequest) ([][]uint32, bool) {
		left, right := p.inputs(first(req.Text1, req.Queries)), p.inputs(first(req.Text2, req.Items, req.Documents))
		if len(left) == 1 {
			left = slices.Repeat(left, max(1, len(right)))
		}
		if len(left) != len(right) {
			p.fail(c, badRequest("Input lengths must be either 1:1, 1:N or N:N", ""))
			return nil, false
		}
		return join(left, right), true
	}, func(_ *poolingRequest, ids []uint32) map[string]any {
		return map[string]any{"object": "score", "score": chance(ids)}
	})
}

func (p *pooler) rerank(c *call) {
	var req poolingRequest
	if !p.read(c, &req) {
		return
	}
	docs := p.inputs(req.Documents)
	pairs := join(slices.Repeat([][]uint32{p.cfg.Vocabulary.Encode(req.Query, true)}, len(docs)), docs)
	n, ok := p.compute(c, &req.sampling, pairs)
	if !ok {
		return
	}
	results := make([]map[string]any, 0, len(pairs))
	for i, ids := range pairs {
		results = append(results, map[string]any{"index": i, "relevance_score": chance(ids), "document": map[string]any{"text": string(vocab.Decode(nil, docs[i], true)), "multi_modal": nil}})
	}
	slices.SortStableFunc(results, func(a, b map[string]any) int {
		return cmp.Compare(b["relevance_score"].(float64), a["relevance_score"].(float64))
	})
	if req.TopN > 0 && req.TopN < len(results) {
		results = results[:req.TopN]
	}
	c.reply(http.StatusOK, map[string]any{"id": "rerank-" + p.requestID(c.r, ""), "model": req.Model, "results": results, "usage": map[string]int{"prompt_tokens": n, "total_tokens": n}})
}

func first(list ...jsontext.Value) jsontext.Value {
	for _, v := range list {
		if len(v) > 0 {
			return v
		}
	}
	return nil
}

func join(left, right [][]uint32) [][]uint32 {
	pairs := make([][]uint32, 0, len(right))
	for i := range right {
		pairs = append(pairs, slices.Concat(left[i], right[i]))
	}
	return pairs
}

func hashIDs(ids []uint32, seed uint64) uint64 {
	buf := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		buf = binary.LittleEndian.AppendUint32(buf, id)
	}
	return xxh3.HashSeed(buf, seed)
}

// vector is a unit vector made of the ids' hash.
func vector(ids []uint32, size int) []float64 {
	v := make([]float64, size)
	sum := 0.0
	for i := range v {
		v[i] = float64(int64(hashIDs(ids, uint64(i))%2001)-1000) / 1000
		sum += v[i] * v[i]
	}
	for i := range v {
		v[i] = math.Round(v[i]/math.Sqrt(sum+1e-12)*1e6) / 1e6
	}
	return v
}

// chance is a number between 0 and 1 made of the ids' hash.
func chance(ids []uint32) float64 { return float64(hashIDs(ids, 7)%10_000) / 10_000 }
