package enginesim

import (
	"context"
	"net/http"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// maxStored bounds the kept responses; the oldest goes first.
const maxStored = 1024

// responseStore keeps responses for GET and cancel. It lives as long as the engine's process.
type responseStore struct {
	mu    sync.Mutex
	byID  map[string]*storedResponse // guarded by mu
	order []string                   // guarded by mu
}

type storedResponse struct {
	body   responseBody
	turns  []vocab.Message
	cancel context.CancelFunc // of a background response; nil otherwise
}

func (s *responseStore) put(r *storedResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[string]*storedResponse{}
	}
	if _, ok := s.byID[r.body.ID]; !ok {
		s.order = append(s.order, r.body.ID)
	}
	s.byID[r.body.ID] = r
	if len(s.order) > maxStored {
		delete(s.byID, s.order[0])
		s.order = s.order[1:]
	}
}

func (s *responseStore) get(id string) (storedResponse, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.byID[id]
	if !ok {
		return storedResponse{}, false
	}
	return *r, true
}

type responseRequest struct {
	Model              string           `json:"model"`
	Input              jsontext.Value   `json:"input"`
	Instructions       *string          `json:"instructions"`
	Stream             bool             `json:"stream"`
	Store              *bool            `json:"store"`
	Background         bool             `json:"background"`
	MaxOutputTokens    *int             `json:"max_output_tokens"`
	PreviousResponseID *string          `json:"previous_response_id"`
	Tools              []jsontext.Value `json:"tools"`
	ToolChoice         jsontext.Value   `json:"tool_choice"`
	Seed               *int64           `json:"seed"`
	Stop               stringList       `json:"stop"`
	CacheSalt          string           `json:"cache_salt"`
	RequestID          string           `json:"request_id"`
}

type responseBody struct {
	ID                string             `json:"id"`
	CreatedAt         int64              `json:"created_at"`
	IncompleteDetails *incompleteDetails `json:"incomplete_details"`
	Instructions      *string            `json:"instructions"`
	Metadata          *struct{}          `json:"metadata"`
	Model             string             `json:"model"`
	Object            string             `json:"object"`
	Output            []any              `json:"output"`
	responseParameters
	Background         bool           `json:"background"`
	MaxOutputTokens    *int           `json:"max_output_tokens"`
	PreviousResponseID *string        `json:"previous_response_id"`
	ServiceTier        string         `json:"service_tier"`
	Status             string         `json:"status"`
	Truncation         string         `json:"truncation"`
	Usage              *responseUsage `json:"usage"`
	User               *string        `json:"user"`
}

// responseParameters are the parameters of the request that an answer repeats.
type responseParameters struct {
	ParallelToolCalls bool             `json:"parallel_tool_calls"`
	Temperature       float64          `json:"temperature"`
	ToolChoice        string           `json:"tool_choice"`
	Tools             []jsontext.Value `json:"tools"`
	TopP              float64          `json:"top_p"`
}

type incompleteDetails struct {
	Reason string `json:"reason"`
}

type responseItem struct {
	ID      string         `json:"id"`
	Content []responsePart `json:"content"`
	Role    string         `json:"role"`
	Status  string         `json:"status"`
	Type    string         `json:"type"`
}

type responsePart struct {
	Annotations []struct{} `json:"annotations"`
	Text        string     `json:"text"`
	Type        string     `json:"type"`
}

type responseUsage struct {
	InputTokens        int           `json:"input_tokens"`
	InputTokensDetails cachedDetails `json:"input_tokens_details"`
	OutputTokens       int           `json:"output_tokens"`
	TotalTokens        int           `json:"total_tokens"`
}

type cachedDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// responsesCreate answers POST /v1/responses.
func (l *life) responsesCreate(c *call) {
	var req responseRequest
	if !l.read(c, &req) {
		return
	}
	chat, p, bad := l.responsePrompt(&req)
	if bad != nil {
		l.fail(c, *bad)
		return
	}
	a := &responseAnswer{l: l, req: &req, turns: chat.Messages, store: req.Store == nil || *req.Store, says: parserFor(&l.dialect, &chat, &p)}
	if req.Background {
		l.responsesBackground(c, a, &chat.sampling, p)
		return
	}
	l.answer(c, &chat.sampling, "", []promptIDs{p}, func(g *generation) bool {
		a.begin(g, chat.Model)
		if req.Stream {
			return a.stream()
		}
		if !g.finished() {
			return false
		}
		a.finish("")
		c.replyNulls(a.body)
		return true
	})
}

// turns makes messages of the input and of the responses before it.
func (s *responseStore) turns(req *responseRequest) ([]vocab.Message, *apiError) {
	var turns []vocab.Message
	if req.Instructions != nil {
		turns = append(turns, vocab.Message{Role: "system", Content: quote(nil, *req.Instructions)})
	}
	if id := req.PreviousResponseID; id != nil {
		before, ok := s.get(*id)
		if !ok {
			bad := noResponse(*id)
			return nil, &bad
		}
		turns = append(turns, before.turns...)
		for _, item := range before.body.Output {
			if said, ok := item.(responseItem); ok {
				turns = append(turns, vocab.Message{Role: "assistant", Content: quote(nil, said.Content[0].Text)})
			}
		}
	}
	if len(req.Input) == 0 {
		bad := missingField("input")
		return nil, &bad
	}
	if req.Input[0] == '"' {
		return append(turns, vocab.Message{Role: "user", Content: req.Input}), nil
	}
	var list []vocab.Message
	if err := json.Unmarshal(req.Input, &list, jsontext.AllowInvalidUTF8(true)); err != nil {
		bad := validationError(err)
		return nil, &bad
	}
	return append(turns, list...), nil
}

// responsePrompt turns the request into a chat request and renders it.
func (l *life) responsePrompt(req *responseRequest) (chat chatRequest, p promptIDs, bad *apiError) {
	turns, bad := l.stored.turns(req)
	if bad != nil {
		return chat, p, bad
	}
	chat = chatRequest{Messages: turns, Tools: responseTools(req.Tools), ToolChoice: responseChoice(req.ToolChoice)}
	chat.Seed, chat.Stop = req.Seed, req.Stop
	chat.Model, chat.MaxTokens, chat.CacheSalt, chat.Stream = req.Model, req.MaxOutputTokens, req.CacheSalt, req.Stream
	p, bad = l.chatPrompt(&chat)
	return chat, p, bad
}

// responsesBackground answers at once and generates until it ends or is cancelled.
func (l *life) responsesBackground(c *call, a *responseAnswer, s *sampling, p promptIDs) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.r.Context()))
	own := &call{w: &keeper{header: http.Header{}}, r: c.r.WithContext(ctx), record: c.record, book: c.book}
	g := l.start(own, s, "", []promptIDs{p})
	if g == nil {
		cancel()
		l.fail(c, badRequest("the request was refused", ""))
		return
	}
	a.begin(g, s.Model)
	a.body.Status, a.body.Background = "queued", true
	l.stored.put(&storedResponse{body: a.body, turns: a.turns, cancel: cancel})
	queued := a.body
	l.work.Go(func() {
		defer cancel()
		ok := g.finished()
		g.book(ok)
		if ok {
			a.finish("")
		} else {
			a.finish("cancelled")
		}
	})
	c.replyNulls(queued)
}

func (l *life) responsesGet(c *call, id string) {
	r, ok := l.stored.get(id)
	if !ok {
		l.fail(c, noResponse(id))
		return
	}
	c.replyNulls(r.body)
}

func (l *life) responsesCancel(c *call, id string) {
	r, ok := l.stored.get(id)
	switch {
	case !ok:
		l.fail(c, noResponse(id))
	case r.cancel == nil || r.body.Status == "completed" || r.body.Status == "incomplete":
		l.fail(c, apiError{Status: http.StatusBadRequest, Type: "invalid_request_error", Param: "response_id", Message: "Cannot cancel a synchronous response."})
	default:
		r.cancel()
		r.body.Status = "cancelled"
		c.replyNulls(r.body)
	}
}

func noResponse(id string) apiError {
	return apiError{Status: http.StatusNotFound, Type: "invalid_request_error", Param: "response_id", Message: "Response with id '" + id + "' not found."}
}
