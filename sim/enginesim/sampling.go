package enginesim

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/sim/enginesim/core"
	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// ending is where an answer ends before its limit.
type ending struct {
	MinTokens    int        `json:"min_tokens"`
	Stop         stringList `json:"stop"`
	StopTokenIDs []uint32   `json:"stop_token_ids"`
	IncludeStop  bool       `json:"include_stop_str_in_output"`
	IgnoreEOS    bool       `json:"ignore_eos"`
}

// sampling are the fields that all generating routes share.
type sampling struct {
	ending
	Model               string         `json:"model"`
	Stream              bool           `json:"stream"`
	StreamOptions       *streamOptions `json:"stream_options"`
	MaxTokens           *int           `json:"max_tokens"`
	MaxCompletionTokens *int           `json:"max_completion_tokens"`
	N                   *int           `json:"n"`
	Seed                *int64         `json:"seed"`
	ReturnTokenIDs      bool           `json:"return_token_ids"`
	CacheSalt           string         `json:"cache_salt"`
	TruncatePrompt      *int           `json:"truncate_prompt_tokens"`
	AddSpecialTokens    *bool          `json:"add_special_tokens"`
	PromptLogprobs      *int           `json:"prompt_logprobs"`
	RequestID           string         `json:"request_id"`
	KVTransfer          *kvTransfer    `json:"kv_transfer_params"`
	BeamSearch          bool           `json:"use_beam_search"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
	Continuous   bool `json:"continuous_usage_stats"`
}

// stringList is a JSON string or a list of strings.
type stringList []string

// UnmarshalJSON implements json.Unmarshaler.
func (l *stringList) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		var s string
		if err := json.Unmarshal(b, &s, jsontext.AllowInvalidUTF8(true)); err != nil {
			return err
		}
		*l = stringList{s}
		return nil
	}
	var list []string
	if err := json.Unmarshal(b, &list, jsontext.AllowInvalidUTF8(true)); err != nil {
		return err
	}
	*l = list
	return nil
}

// promptIDs is one prompt as the engine takes it.
type promptIDs struct {
	ids   []uint32
	items []core.Item
	// text is the text that echo repeats.
	text string
	// given: the client sent the ids.
	given bool
	// forced is the text that the model is made to write; empty: words of its own. said counts the tokens of it that end the ids.
	forced string
	said   int
}

// check finds a fault that vLLM refuses before it looks at the prompt.
func (d *dialect) check(s *sampling) *apiError {
	if s.StreamOptions != nil && !s.Stream {
		return reject("Stream options can only be defined when `stream=True`. (parameter=stream_options)", "stream_options")
	}
	if s.N != nil && *s.N > maxChoices {
		return reject(fmt.Sprintf("n must be at most %d, got %d. (parameter=n, value=%d)", maxChoices, *s.N, *s.N), "n")
	}
	if s.N != nil && *s.N < 1 {
		return reject(fmt.Sprintf("n must be at least 1, got %d. (parameter=n, value=%d)", *s.N, *s.N), "n")
	}
	if m := s.limit(); m != nil && *m < 0 {
		return reject(fmt.Sprintf("max_tokens must be at least 1, got %d. (parameter=max_tokens, value=%d)", *m, *m), "max_tokens")
	}
	return nil
}

func reject(message, param string) *apiError {
	e := badRequest(message, param)
	return &e
}

func (s *sampling) limit() *int {
	if s.MaxCompletionTokens != nil {
		return s.MaxCompletionTokens
	}
	return s.MaxTokens
}

// fit applies truncation and the context length, and gives the answer's bound.
func (d *dialect) fit(s *sampling, p *promptIDs) (maxTokens int, e *apiError) {
	limit := d.cfg.Core.MaxModelLen
	asked := s.limit()
	if t := s.TruncatePrompt; t != nil {
		keep := *t
		if keep == -1 {
			keep = limit
			if asked != nil {
				keep -= *asked
			}
		}
		if keep >= 0 && len(p.ids) > keep {
			p.ids, p.items = p.ids[len(p.ids)-keep:], nil
		}
	}
	if len(p.ids) == 0 {
		return 0, reject("The decoder prompt cannot be empty", "")
	}
	if asked != nil && *asked > limit && d.features.has(modern) {
		return 0, reject(fmt.Sprintf("max_tokens=%d cannot be greater than max_model_len=%d. Please request fewer output tokens. (parameter=max_tokens, value=%d)", *asked, limit, *asked), "max_tokens")
	}
	want := 1
	if asked != nil {
		want = *asked
	}
	if len(p.ids)+want > limit {
		return 0, reject(fmt.Sprintf("This model's maximum context length is %d tokens. However, you requested %d output tokens and your prompt contains %d input tokens, for a total of %d tokens. Please reduce the length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=%d)",
			limit, want, len(p.ids), len(p.ids)+want, len(p.ids)), "input_tokens")
	}
	if asked != nil {
		return *asked, nil
	}
	return limit - len(p.ids), nil
}

// space separates the blocks of this request from equal ones.
func (d *dialect) space(model, salt string, items []core.Item) core.Space {
	sp := core.Space{Salt: salt, Items: items}
	if of := d.adapters.find(model); of.id != 0 {
		sp.Adapter, sp.AdapterID = model, of.id
	}
	return sp
}

// known checks the model's name; empty is the primary one.
func (d *dialect) known(model *string) *apiError {
	if *model == "" {
		*model = d.cfg.Models[0]
		return nil
	}
	if slices.Contains(d.cfg.Models, *model) || d.adapters.find(*model).id != 0 {
		return nil
	}
	text := fmt.Sprintf("The model `%s` does not exist.", *model)
	if d.features.has(modern) {
		text += " Valid aliases: " + joinNames(d.cfg.Models) + "."
	}
	return &apiError{Status: 404, Message: text, Type: "NotFoundError", Param: "model"}
}

func joinNames(names []string) string {
	out := names[0]
	for _, n := range names[1:] {
		out += ", " + n
	}
	return out
}

// detok turns ids into text piece by piece and holds back a character that is not complete.
type detok struct {
	held []byte
}

// feed returns the text that id completes.
func (d *detok) feed(dst []byte, ids []uint32) []byte {
	d.held = vocab.Decode(d.held, ids, true)
	cut := len(d.held)
	for back := 1; back <= min(utf8.UTFMax, len(d.held)); back++ {
		at := len(d.held) - back
		if utf8.RuneStart(d.held[at]) {
			if !utf8.FullRune(d.held[at:]) {
				cut = at
			}
			break
		}
	}
	dst = append(dst, d.held[:cut]...)
	d.held = append(d.held[:0], d.held[cut:]...)
	return dst
}

// maxChoices is the largest n, as VLLM_MAX_N_SEQUENCES bounds it.
const maxChoices = 16384
