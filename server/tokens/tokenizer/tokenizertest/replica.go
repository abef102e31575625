package tokenizertest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Fault is what a Replica does instead of answering.
type Fault string

// The faults.
const (
	FaultNone       Fault = ""
	FaultHang       Fault = "hang"        // until the caller leaves
	FaultSlow       Fault = "slow"        // one second late
	FaultHalfBody   Fault = "half_body"   // the connection ends in the middle of the answer
	FaultWrongJSON  Fault = "wrong_json"  // 200 with an object that has no tokens
	FaultNotJSON    Fault = "not_json"    // 200 with text
	Fault500        Fault = "500"         // an error object with an int code
	FaultStringCode Fault = "string_code" // an error object with a string code
	FaultStringErr  Fault = "string_err"  // 503 with an error that is a string
	Fault429        Fault = "429"         // with Retry-After: 1
	Fault404        Fault = "404"         // unknown model
	Fault400        Fault = "400"         // a template's complaint
	Fault401        Fault = "401"
	FaultEmpty      Fault = "empty" // no tokens
	FaultNoRoute    Fault = "no_route"
)

// Replica is an http.Handler that tokenizes.
type Replica struct {
	BPE      *BPE
	Template Template
	// Render serves the render routes; without it they are 404.
	Render bool
	// Native serves those of /v1/messages and /v1/responses, by a template of its own making: NativeIDs.
	Native    bool
	NativeIDs []uint32
	// Rust answers as the Rust front end: no adapters.
	Rust bool
	// Models are the accepted names; empty accepts any.
	Models []string
	// TrustTemplate accepts chat_template in requests.
	TrustTemplate bool
	// TakesIDs uses the ids in kv_transfer_params on the chat route.
	TakesIDs bool
	// Base and PerToken are the time that an answer takes.
	Base     time.Duration
	PerToken time.Duration

	Calls     atomic.Int64
	Tokens    atomic.Int64
	Generated atomic.Int64 // answers of the chat route

	mu    sync.Mutex
	fault Fault                      // guarded by mu
	last  map[string]json.RawMessage // guarded by mu
	path  string                     // guarded by mu
}

// Fail makes the replica behave so from now on.
func (r *Replica) Fail(f Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = f
}

// Last returns the path and body of the latest request.
func (r *Replica) Last() (string, map[string]json.RawMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.path, r.last
}

// request has the fields that the routes read.
type request struct {
	Model     string         `json:"model"`
	Prompt    any            `json:"prompt"`
	Messages  []Message      `json:"messages"`
	Tools     any            `json:"tools"`
	Special   *bool          `json:"add_special_tokens"`
	Generate  *bool          `json:"add_generation_prompt"`
	Continue  bool           `json:"continue_final_message"`
	Template  *string        `json:"chat_template"`
	Kwargs    map[string]any `json:"chat_template_kwargs"`
	Documents any            `json:"documents"`
	Effort    any            `json:"reasoning_effort"`
	IDs       []uint32       `json:"tokens"`
	Transfer  struct {
		IDs []uint32 `json:"prompt_token_ids"`
	} `json:"kv_transfer_params"`
}

// ServeHTTP implements http.Handler.
func (r *Replica) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.Calls.Add(1)
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the caller left
	}
	var in request
	fields := map[string]json.RawMessage{}
	if json.Unmarshal(body, &in) != nil || json.Unmarshal(body, &fields) != nil {
		fail(w, http.StatusBadRequest, "BadRequestError", "1 validation error(s):")
		return
	}
	r.mu.Lock()
	fault := r.fault
	r.last, r.path = fields, req.URL.Path
	r.mu.Unlock()
	if r.misbehave(w, req, fault) {
		return
	}
	if len(r.Models) > 0 && in.Model != "" && !slices.Contains(r.Models, in.Model) {
		fail(w, http.StatusNotFound, "NotFoundError", fmt.Sprintf("The model `%s` does not exist.", in.Model))
		return
	}
	r.answer(w, req, &in)
}

func (r *Replica) answer(w http.ResponseWriter, req *http.Request, in *request) {
	switch req.URL.Path {
	case "/tokenize":
		var ids []uint32
		if in.Messages != nil {
			text, problem := r.render(in, in.Kwargs)
			if problem != "" {
				fail(w, http.StatusBadRequest, "BadRequestError", problem)
				return
			}
			ids = r.BPE.Encode(text)
		} else {
			text, ok := in.Prompt.(string)
			if !ok {
				fail(w, http.StatusBadRequest, "BadRequestError", "prompt: a string is needed")
				return
			}
			ids = r.plain(text, in)
		}
		r.spend(req, len(ids))
		reply(w, fmt.Sprintf(`{"count":%d,"max_model_len":131072,"tokens":%s,"token_strs":null}`, len(ids), list(ids)))
	case "/detokenize":
		text, _ := json.Marshal(r.BPE.Decode(in.IDs)) // a string always marshals
		reply(w, `{"prompt":`+string(text)+`}`)
	case "/v1/chat/completions/render":
		if !r.Render {
			fail(w, http.StatusNotFound, "Not Found", "Not Found")
			return
		}
		r.renderChat(w, req, in)
	case "/v1/completions/render":
		if !r.Render {
			fail(w, http.StatusNotFound, "Not Found", "Not Found")
			return
		}
		r.renderTexts(w, req, in)
	case "/v1/messages/render", "/v1/responses/render":
		if !r.Native {
			fail(w, http.StatusNotFound, "Not Found", "Not Found")
			return
		}
		reply(w, `{"request_id":"x","token_ids":`+list(r.NativeIDs)+`,"sampling_params":{},"features":null,"stream":false}`)
	case "/v1/chat/completions":
		r.generate(w, in)
	default:
		fail(w, http.StatusNotFound, "Not Found", "Not Found")
	}
}

// generate answers a chat request with the count of its prompt.
func (r *Replica) generate(w http.ResponseWriter, in *request) {
	text, _ := r.render(in, in.Kwargs) // the tests' requests are right
	ids := r.BPE.Encode(text)
	if r.TakesIDs && in.Transfer.IDs != nil {
		ids = in.Transfer.IDs
	}
	reply(w, fmt.Sprintf(`{"choices":[{"message":{"role":"assistant","content":"ok"}}],"usage":{"prompt_tokens":%d,"completion_tokens":1}}`, len(ids)))
	r.Generated.Add(1)
}

func (r *Replica) renderChat(w http.ResponseWriter, req *http.Request, in *request) {
	kwargs := map[string]any{}
	for k, v := range in.Kwargs {
		kwargs[k] = v
	}
	if in.Documents != nil {
		kwargs["documents"] = in.Documents
	}
	if in.Effort != nil {
		kwargs["reasoning_effort"] = in.Effort
		if _, set := in.Kwargs["enable_thinking"]; !set {
			kwargs["enable_thinking"] = in.Effort != "none"
		}
	}
	text, problem := r.render(in, kwargs)
	if problem != "" {
		fail(w, http.StatusBadRequest, "BadRequestError", problem)
		return
	}
	ids := r.BPE.Encode(text)
	r.spend(req, len(ids))
	reply(w, `{"request_id":"x","token_ids":`+list(ids)+`,"sampling_params":{"temperature":1.0},"features":null,"stream":false}`)
}

func (r *Replica) renderTexts(w http.ResponseWriter, req *http.Request, in *request) {
	var texts []string
	switch p := in.Prompt.(type) {
	case string:
		texts = []string{p}
	case []any:
		for _, t := range p {
			s, _ := t.(string)
			texts = append(texts, s)
		}
	}
	var items []string
	for _, t := range texts {
		ids := r.plain(t, in)
		r.spend(req, len(ids))
		items = append(items, `{"request_id":"x","token_ids": `+list(ids)+`, "sampling_params": {}}`)
	}
	reply(w, "["+strings.Join(items, ", ")+"]")
}

// plain tokenizes a text; a special first token stands for add_special_tokens.
func (r *Replica) plain(text string, in *request) []uint32 {
	ids := r.BPE.Encode(text)
	if (in.Special == nil || *in.Special) && text != "" {
		ids = append(r.BPE.Encode("<|begin|>"), ids...)
	}
	return ids
}

// render applies the template, or says what is wrong with the request.
func (r *Replica) render(in *request, kwargs map[string]any) (string, string) {
	generate := in.Generate == nil || *in.Generate
	if generate && in.Continue {
		return "", "Cannot set both `continue_final_message` and `add_generation_prompt`"
	}
	if in.Template != nil && !r.TrustTemplate {
		return "", "Chat template is passed with request, but --trust-request-chat-template is not set."
	}
	if len(in.Messages) == 0 {
		return "", "messages: at least one is needed"
	}
	tools, _ := json.Marshal(in.Tools) // came from JSON
	return r.Template(&Chat{Messages: in.Messages, Tools: tools, Kwargs: kwargs, Generate: generate, Continue: in.Continue}), ""
}

// spend takes the time that the answer costs.
func (r *Replica) spend(req *http.Request, tokens int) {
	r.Tokens.Add(int64(tokens))
	if d := r.Base + time.Duration(tokens)*r.PerToken; d > 0 {
		select {
		case <-time.After(d):
		case <-req.Context().Done():
		}
	}
}

func list(ids []uint32) string {
	b, _ := json.Marshal(ids) // numbers always marshal
	if ids == nil {
		return "[]"
	}
	return string(b)
}

func reply(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, body) // the caller may have left
}

func fail(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	m, _ := json.Marshal(message)                                                                       // a string always marshals
	_, _ = fmt.Fprintf(w, `{"error":{"message":%s,"type":%q,"param":null,"code":%d}}`, m, kind, status) // as in reply
}
