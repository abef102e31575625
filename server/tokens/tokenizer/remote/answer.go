package remote

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// maxIDs bounds the ids of one prompt; no context is that long.
const maxIDs = 16 << 20

// Media is one image, clip or video of a prompt: Length ids from Offset on stand for it.
type Media struct {
	Modality string
	// Hash is the engine's identifier of the content.
	Hash   string
	Offset int
	Length int
}

// Answer is a tokenizer's answer.
type Answer struct {
	// IDs has one list per prompt asked about.
	IDs [][]uint32
	// Media has the items of the first prompt in the order of their offsets.
	Media []Media
	// MaxLen is the model's context length, 0 when the answer does not say.
	MaxLen int
	// Rendered is set when the ids come from the very path that generation takes.
	Rendered bool
	// Text is the answer to OpDetokenize.
	Text string
	// Replica answered.
	Replica replica.ID
}

func malformed(format string, args ...any) error {
	return &Fault{Kind: KindMalformed, Cause: fmt.Errorf(format, args...)}
}

// parse reads a 200 answer to the job.
func (j *Job) parse(body []byte, render bool) (*Answer, error) {
	a := &Answer{Rendered: render}
	if j.Op == OpDetokenize {
		text := rawjson.Member(body, "prompt")
		s, err := rawjson.Unquote(text)
		if err != nil {
			return nil, malformed("no text in the answer to /detokenize")
		}
		a.Text = s
		return a, nil
	}
	s := rawjson.Trusted(body)
	if !render {
		return a, a.parseTokenize(&s, j.Op == opProbe)
	}
	if j.Prompt.Kind == prompt.KindChat {
		return a, a.parseRendered(&s)
	}
	if s.Space() != '[' {
		return nil, malformed("render: no list of prompts")
	}
	var inner error
	ok := s.Elements(func(int) bool {
		inner = a.parseRendered(&s)
		return inner == nil
	})
	switch {
	case inner != nil:
		return nil, inner
	case !ok:
		return nil, malformed("render: %w", s.Err())
	case len(a.IDs) != max(1, len(j.Prompt.Texts)):
		return nil, malformed("render: %d prompts answered, %d asked", len(a.IDs), max(1, len(j.Prompt.Texts)))
	}
	return a, nil
}

// readIDs reads the object at s, once: the list of ids called name, and the members that others asks for.
func (a *Answer) readIDs(s *rawjson.Scanner, route, name string, others map[string]*[]byte) (int, error) {
	if s.Space() != '{' {
		return 0, malformed("%s: no object", route)
	}
	var ids []uint32
	found := false
	ok := s.Members(func(key []byte, _ int) (read bool) {
		if string(key) == name {
			found = true
			ids, read = s.IDs(maxIDs)
			return read
		}
		from := s.Pos
		if !s.Skip() {
			return false
		}
		if to := others[string(key)]; to != nil {
			*to = s.Data[from:s.Pos]
		}
		return true
	})
	switch {
	case !ok:
		return 0, malformed("%s: %w", route, s.Err())
	case !found:
		return 0, malformed("%s: an answer without %s", route, name)
	}
	a.IDs = append(a.IDs, ids)
	return len(ids), nil
}

// parseTokenize reads {"count":..,"max_model_len":..,"tokens":[..]}.
func (a *Answer) parseTokenize(s *rawjson.Scanner, probe bool) error {
	var count, maxLen []byte
	n, err := a.readIDs(s, "tokenize", "tokens", map[string]*[]byte{"count": &count, "max_model_len": &maxLen})
	if err == nil && !probe && count != nil && smallInt(count) != n {
		return malformed("tokenize: count is %d, tokens are %d", smallInt(count), n)
	}
	a.MaxLen = smallInt(maxLen)
	return err
}

// parseRendered reads the GenerateRequest at s that the render routes answer with.
func (a *Answer) parseRendered(s *rawjson.Scanner) error {
	var features []byte
	n, err := a.readIDs(s, "render", "token_ids", map[string]*[]byte{"features": &features})
	if err != nil || len(a.IDs) > 1 || rawjson.IsNull(features) {
		return err
	}
	return a.parseFeatures(features, n)
}

// parseFeatures reads mm_hashes and mm_placeholders and leaves the tensors alone.
func (a *Answer) parseFeatures(features []byte, tokens int) error {
	var hashes map[string][]string
	var places map[string][]struct{ Offset, Length int }
	if raw := rawjson.Member(features, "mm_hashes"); !rawjson.IsNull(raw) {
		if err := json.Unmarshal(raw, &hashes); err != nil {
			return malformed("render: mm_hashes: %w", err)
		}
	}
	if raw := rawjson.Member(features, "mm_placeholders"); !rawjson.IsNull(raw) {
		if err := json.Unmarshal(raw, &places); err != nil {
			return malformed("render: mm_placeholders: %w", err)
		}
	}
	for modality, list := range hashes {
		if len(places[modality]) != len(list) {
			return malformed("render: %d hashes and %d placeholders of %s", len(list), len(places[modality]), modality)
		}
		for i, h := range list {
			at := places[modality][i]
			if at.Offset < 0 || at.Length < 0 || at.Offset+at.Length > tokens {
				return malformed("render: a placeholder outside of the prompt")
			}
			a.Media = append(a.Media, Media{Modality: modality, Hash: h, Offset: at.Offset, Length: at.Length})
		}
	}
	slices.SortFunc(a.Media, func(x, y Media) int {
		if x.Offset != y.Offset {
			return x.Offset - y.Offset
		}
		return strings.Compare(x.Hash, y.Hash)
	})
	return nil
}

// smallInt reads an integer of at most 9 digits, or returns 0.
func smallInt(v []byte) int {
	n := 0
	if len(v) == 0 || len(v) > 9 {
		return 0
	}
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0
		}
		n = n*10 + int(c-'0')
	}
	return n
}
