package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/parity"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote"
)

// sample is one question whose answer must be the same on every replica of a pool.
type sample struct {
	name string
	job  func(model string) *remote.Job
	// change is what to do when only this sample and later ones differ.
	change string
}

const (
	sampleText = "Straße, naïve café – 東京で\u00a0会いましょう 🚀\n\n\tfunc main() { fmt.Println(\"3.14159 != 22/7\") }  "
	sampleUser = `{"role":"user","content":"What is the weather in Zürich, and in 東京? 🚀"}`
)

// samples go from the tokenizer alone to the whole chat template.
func samples() []sample {
	bare := false
	chat := func(fields ...prompt.Field) func(string) *remote.Job {
		return func(model string) *remote.Job {
			return &remote.Job{Op: remote.OpPrompt, Model: model, Prompt: &prompt.Prompt{Kind: prompt.KindChat, API: prompt.APIChat, Model: model, Fields: fields, Messages: [][]byte{
				[]byte(`{"role":"system","content":"You answer briefly."}`), []byte(sampleUser),
				[]byte(`{"role":"assistant","content":"Sunny."}`), []byte(`{"role":"user","content":"And tomorrow?"}`),
			}}}
		}
	}
	tools := prompt.Field{Name: "tools", Value: []byte(`[{"type":"function","function":{"name":"get_weather","description":"Weather of a place","parameters":{"type":"object","properties":{"place":{"type":"string"}},"required":["place"]}}}]`)}
	return []sample{
		{"text", func(model string) *remote.Job {
			return &remote.Job{Op: remote.OpText, Model: model, Text: sampleText, Special: &bare}
		},
			"the replicas have different tokenizers: start all with the same model, --tokenizer, --tokenizer-mode and --revision"},
		{"special tokens", func(model string) *remote.Job {
			return &remote.Job{Op: remote.OpText, Model: model, Text: sampleText}
		},
			"the replicas open a prompt with different special tokens: compare tokenizer_config.json and --revision of each"},
		{"chat", chat(), "the replicas have different chat templates: start all with the same --chat-template, --default-chat-template-kwargs and vLLM version"},
		{"tools", chat(tools), "the replicas render tools differently: start all with the same --chat-template, --tool-call-parser and vLLM version"},
	}
}

// refusal is an answer that says that a model cannot answer a sample.
func refusal(err error) (*remote.ClientFault, bool) {
	var refused *remote.ClientFault
	return refused, errors.As(err, &refused)
}

// model is the name to ask a replica for: the first base model that it serves.
func model(r *replica.Replica) string {
	for _, m := range r.Models {
		if m.Parent == "" {
			return m.ID
		}
	}
	return ""
}

// now is a replica as the router knows it at this moment.
func (s *setup) now(r *replica.Replica) *replica.Replica {
	if fresh, ok := s.observer.Registry.Snapshot().Replica(r.ID); ok {
		return fresh
	}
	return r
}

// ask puts one question to one replica, as the router does. Each has a pool of its own: one that fails must not spoil the next.
func (s *setup) ask(ctx context.Context, r *replica.Replica, j *remote.Job) (*remote.Answer, error) {
	return remote.New(s.conf.Tokenizer.Remote, remote.Params{Sender: s.engines}).Do(ctx, []*replica.Replica{r}, j)
}

// checkTokenize asks for each of the routes that token ids come from.
func checkTokenize(ctx context.Context, in scope) []Finding {
	if !in.conf.Tokenizer.Enabled {
		return []Finding{skip("", "tokenizer.enabled is false: requests are routed by load alone")}
	}
	return in.each(func(r *replica.Replica) []Finding { return in.tokenizeOf(ctx, in.now(r)) })
}

func (in scope) tokenizeOf(ctx context.Context, r *replica.Replica) []Finding {
	subject, name := string(r.ID), model(r)
	list := samples()
	text, err := in.ask(ctx, r, list[1].job(name))
	if err != nil {
		return noTokens(subject, r, err)
	}
	if len(text.IDs[0]) == 0 {
		return fault(Fail, subject, "token ids from /tokenize", "it answers without any", "look at the model's tokenizer: vLLM must not be started with --skip-tokenizer-init")
	}
	var found []Finding
	if back, err := in.ask(ctx, r, &remote.Job{Op: remote.OpDetokenize, Model: name, IDs: text.IDs[0]}); err != nil {
		found = append(found, fault(Warn, subject, "the text of token ids from /detokenize", err.Error(), "let proxies pass POST /detokenize; only kvpilot's Detokenize needs it")...)
	} else if !strings.Contains(back.Text, "café") {
		found = append(found, fault(Warn, subject, "the text back from /detokenize", fmt.Sprintf("%.60q", back.Text), "the tokenizer loses text: is it this model's?")...)
	}
	chat, err := in.ask(ctx, r, list[2].job(name))
	how := "by /tokenize"
	switch refused, isRefusal := refusal(err); {
	case isRefusal:
		return append(found, ok(subject, "texts; chats are refused with status %d (a model without a chat template)", refused.Status))
	case err != nil:
		return append(found, noTokens(subject, r, err)...)
	case chat.Rendered:
		how = "by /render, as the engine does it"
		found = append(found, in.rendered(ctx, r, text.IDs[0])...)
	case rendersFrom(r):
		found = append(found, fault(Warn, subject, "the render routes of vLLM "+r.Version, "POST /v1/chat/completions/render is not there; ids of chats are asked of /tokenize",
			"start vLLM with --enable-scale-out where the version has it, and let proxies pass /v1/*/render: /tokenize is not exact for media, stored responses, gpt-oss and Mistral")...)
	}
	if len(found) > 0 {
		return found
	}
	return []Finding{ok(subject, "%s", how)}
}

// rendersFrom reports whether a replica's version should have the render routes.
func rendersFrom(r *replica.Replica) bool {
	var major, minor int
	n, _ := fmt.Sscanf(r.Version, "%d.%d", &major, &minor)
	return n == 2 && !r.RustFrontend && (major > 0 || minor >= 18)
}

// rendered compares a replica's two ways to ids: they must be the same for a plain text.
func (in scope) rendered(ctx context.Context, r *replica.Replica, ids []uint32) []Finding {
	name := model(r)
	other, err := in.ask(ctx, r, &remote.Job{Op: remote.OpPrompt, Model: name, Prompt: &prompt.Prompt{Kind: prompt.KindText, API: prompt.APICompletions, Model: name, Text: sampleText}})
	if err != nil || slices.Equal(other.IDs[0], ids) {
		return nil // a completion may be refused by a model that only chats
	}
	return fault(Fail, string(r.ID), "the same ids from /tokenize and /v1/completions/render", difference(ids, other.IDs[0], "tokenize", "render"),
		"is there one vLLM behind this URL? A proxy that spreads requests over several must be replaced by a replica for each")
}

// noTokens explains why a replica gives no ids.
func noTokens(subject string, r *replica.Replica, err error) []Finding {
	change := "look at the replica's log"
	switch remote.KindOf(err) { //nolint:exhaustive // the others have no better advice
	case remote.KindUnsupported:
		change = "let proxies pass POST /tokenize and /detokenize; without them requests are routed by load alone, or set tokenizer.enabled: false"
	case remote.KindAuth:
		change = "give the replica's key as registry.access.api_key_file, and let proxies pass it on"
	case remote.KindTimeout:
		change = "raise tokenizer.remote.timeout, or look why the replica is slow"
	case remote.KindMalformed:
		change = "is this vLLM's own answer? Look at what is between router and replica"
	}
	seen := strings.TrimPrefix(err.Error(), "tokenize: ")
	if refused, isRefusal := refusal(err); isRefusal {
		seen, change = fmt.Sprintf("status %d: %.120q", refused.Status, refused.Body), "does the replica serve "+model(r)+" under this name?"
	}
	return fault(Fail, subject, "token ids from "+r.URL+"/tokenize", seen, change)
}

// difference says where two lists of ids part.
func difference(a, b []uint32, nameA, nameB string) string {
	n := parity.CommonPrefix(a, b)
	at := func(ids []uint32) string {
		if n < len(ids) {
			return fmt.Sprint(ids[n])
		}
		return "the end"
	}
	return fmt.Sprintf("%d ids from %s, %d from %s; they part at token %d: %s and %s", len(a), nameA, len(b), nameB, n, at(a), at(b))
}

// checkParity asks the same of all replicas of a pool.
func checkParity(ctx context.Context, in scope) []Finding {
	if !in.conf.Tokenizer.Enabled {
		return []Finding{skip("", "tokenizer.enabled is false")}
	}
	names, of := pools(in.left(), func(r *replica.Replica) []replica.Model { return in.now(r).Models })
	var list []Finding
	for _, name := range names {
		if len(of[name]) < 2 {
			list = append(list, ok(name, "one replica: nothing to compare"))
			continue
		}
		list = append(list, in.parityOf(ctx, name, of[name])...)
	}
	return list
}

// parityOf stops at the first sample that differs: later ones differ for the same reason.
func (in scope) parityOf(ctx context.Context, pool string, list []*replica.Replica) []Finding {
	for _, s := range samples() {
		answers := make([]string, len(list)) // ids, as a text that can be compared
		ids := make([][]uint32, len(list))
		each(len(list), func(i int) {
			a, err := in.ask(ctx, in.now(list[i]), s.job(pool))
			switch refused, isRefusal := refusal(err); {
			case isRefusal:
				answers[i] = fmt.Sprintf("status %d", refused.Status)
			case err != nil:
				answers[i] = err.Error()
			default:
				ids[i], answers[i] = a.IDs[0], fmt.Sprint(a.IDs[0])
			}
		})
		common := mostFrequent(answers)
		first := slices.Index(answers, common)
		var differ []string
		seen := ""
		for i, r := range list {
			if answers[i] == common {
				continue
			}
			differ = append(differ, string(r.ID))
			if seen != "" {
				continue
			}
			seen = fmt.Sprintf("%s: %s, %s: %s", list[first].ID, brief(ids[first], answers[first]), r.ID, brief(ids[i], answers[i]))
			if ids[first] != nil && ids[i] != nil {
				seen = difference(ids[first], ids[i], string(list[first].ID), string(r.ID))
			}
		}
		if len(differ) > 0 {
			return fault(Fail, pool, fmt.Sprintf("the same ids for the sample %q from all %d replicas", s.name, len(list)), fmt.Sprintf("%s differ from the others; %s", few(differ), seen), s.change)
		}
	}
	return []Finding{ok(pool, "%d replicas give the same ids for text, special tokens, chat and tools", len(list))}
}

func brief(ids []uint32, otherwise string) string {
	if ids == nil {
		return otherwise
	}
	return fmt.Sprintf("%d ids", len(ids))
}

// mostFrequent is the text that occurs most often, the first of several.
func mostFrequent(list []string) string {
	count := map[string]int{}
	for _, s := range list {
		count[s]++
	}
	return slices.MaxFunc(list, func(a, b string) int { return cmp.Compare(count[a], count[b]) })
}
