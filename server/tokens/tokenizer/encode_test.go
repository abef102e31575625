package tokenizer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

func encode(t *testing.T, p *tokenizer.Pool, body string, rs ...*replica.Replica) *tokenizer.Encoding {
	t.Helper()
	enc, err := p.Encode(context.Background(), tokenizer.Request{Prompt: read(t, body), Replicas: rs, Pool: model, Keep: 1 << 20})
	if err != nil {
		t.Fatalf("Encode() error = %v", err)
	}
	return enc
}

func chatML(messages ...string) string {
	var b strings.Builder
	for i := 0; i < len(messages); i += 2 {
		b.WriteString("<|im_start|>" + messages[i] + "\n" + messages[i+1] + "<|im_end|>\n")
	}
	return b.String() + "<|im_start|>assistant\n"
}

// The table of edge cases that the founding documents list, by their numbers.
func TestEdgeCases(t *testing.T) {
	special := func(text string) []uint32 { return append(bpe.Encode("<|begin|>"), bpe.Encode(text)...) }
	for _, render := range []bool{false, true} {
		source := tokenizer.SourceTokenize
		if render {
			source = tokenizer.SourceRender
		}
		for _, tc := range []struct {
			name, body string
			ids        []uint32
			source     tokenizer.Source
			reason     string
		}{
			{"4.16 chat", `{"messages":[{"role":"user","content":"Hello, world!"}]}`, bpe.Encode(chatML("user", "Hello, world!")), source, ""},
			{"4.17 completion", `{"prompt":"The quick"}`, special("The quick"), source, ""},
			{"4.18 empty messages and a prompt", `{"messages":[],"prompt":"hi"}`, special("hi"), source, ""},
			{"4.19 null messages and a prompt", `{"messages":null,"prompt":"hi"}`, special("hi"), source, ""},
			{"4.20 batch of texts", `{"prompt":["a","b"]}`, special("a"), source, ""},
			{"4.21 ids", `{"prompt":[1,2,3]}`, []uint32{1, 2, 3}, tokenizer.SourceBody, ""},
			{"4.21 batch of ids", `{"prompt":[[1,2],[3]]}`, []uint32{1, 2}, tokenizer.SourceBody, ""},
			{"4.23 empty messages", `{"messages":[]}`, nil, tokenizer.SourceNone, "no_prompt"},
			{"4.23 empty prompt", `{"prompt":""}`, nil, tokenizer.SourceNone, "no_prompt"},
			{"4.23 no key", `{"input":"x"}`, nil, tokenizer.SourceNone, "no_prompt"},
			{"4.23 not an object", `[1]`, nil, tokenizer.SourceNone, "no_prompt"},
			{"4.23 bad JSON", `{"prompt":`, nil, tokenizer.SourceNone, "no_prompt"},
			{"4.23 empty", ``, nil, tokenizer.SourceNone, "no_prompt"},
		} {
			t.Run(string(source)+" "+tc.name, func(t *testing.T) {
				pool := start(t, tokenizer.DefaultConfig())
				enc := encode(t, pool, tc.body, serve(t, "a", &simulated{render: render}))
				if !slices.Equal(enc.IDs, tc.ids) || enc.Source != tc.source || enc.Reason != tc.reason {
					t.Errorf("Encode() = %v from %s (%q), want %v from %s (%q)", enc.IDs, enc.Source, enc.Reason, tc.ids, tc.source, tc.reason)
				}
			})
		}
	}
}

func TestImagesWithoutHashesHaveNoIDs(t *testing.T) {
	pool := start(t, tokenizer.DefaultConfig())
	enc := encode(t, pool, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}]}`,
		serve(t, "a", &simulated{}))
	if enc.Source != tokenizer.SourceNone || enc.Reason != "unmappable" {
		t.Errorf("Encode() from %s (%q), want none (unmappable)", enc.Source, enc.Reason)
	}
}

func TestEmptyAnswerIsTokenless(t *testing.T) {
	r := &simulated{faults: enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Body: `{"count":0,"max_model_len":131072,"tokens":[],"token_strs":null,"token_ids":[]}`}}}
	enc := encode(t, start(t, tokenizer.DefaultConfig()), `{"prompt":"`+strings.Repeat("word ", 100)+`"}`, serve(t, "a", r))
	if enc.Source != tokenizer.SourceNone || enc.Reason != tokenizer.ReasonEmpty || enc.Tokens < 50 {
		t.Errorf("Encode() from %s (%q) with %d tokens, want none (empty) with an estimate", enc.Source, enc.Reason, enc.Tokens)
	}
}

// spy keeps the last body that was sent.
type spy struct {
	remote.Sender
	mu   sync.Mutex
	body []byte // guarded by mu
}

// Do implements remote.Sender.
func (s *spy) Do(ctx context.Context, t upstream.Target, r *upstream.Request) (*upstream.Response, error) {
	s.mu.Lock()
	s.body = bytes.Clone(r.Body)
	s.mu.Unlock()
	return s.Sender.Do(ctx, t, r)
}

func (s *spy) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.body)
}

func TestFieldsReachTheTokenizer(t *testing.T) {
	const messages = `"messages":[{"role":"user","content":"Hello"},{"role":"assistant","content":"The quick"}]`
	for _, tc := range []struct{ name, extra, want string }{
		{"no generation prompt", `,"add_generation_prompt":false`, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nThe quick<|im_end|>\n"},
		{"continued", `,"continue_final_message":true,"add_generation_prompt":false`, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nThe quick"},
		{"no thinking", `,"chat_template_kwargs":{"enable_thinking":false}`, chatML("user", "Hello", "assistant", "The quick") + "<think>\n\n</think>\n\n"},
		{"documents", `,"documents":["x"]`, "<|im_start|>system\n# Documents\n[x]<|im_end|>\n" + chatML("user", "Hello", "assistant", "The quick")},
	} {
		for _, render := range []bool{false, true} {
			r := &simulated{render: render}
			sent := &spy{Sender: upstream.New(upstream.DefaultConfig(), upstream.Params{})}
			enc := encode(t, startWith(t, tokenizer.DefaultConfig(), tokenizer.Params{Sender: sent}), `{`+messages+tc.extra+`,"temperature":0.5}`, serve(t, "a", r))
			if got := bpe.Decode(enc.IDs); got != tc.want {
				t.Errorf("%s, render %v: ids are of %q, want %q", tc.name, render, got, tc.want)
			}
			if body := sent.last(); !render && strings.Contains(body, "temperature") {
				t.Errorf("%s: temperature reached /tokenize", tc.name)
			}
		}
	}
}

// With continue_final_message alone, /tokenize would add a generation prompt and refuse.
func TestContinueFinalMessageAlone(t *testing.T) {
	r := &simulated{}
	enc := encode(t, start(t, tokenizer.DefaultConfig()),
		`{"messages":[{"role":"assistant","content":"The"}],"continue_final_message":true}`, serve(t, "a", r))
	if got := bpe.Decode(enc.IDs); got != "<|im_start|>assistant\nThe" {
		t.Errorf("ids are of %q", got)
	}
}

func TestClientFaultsSurface(t *testing.T) {
	for _, tc := range []struct {
		status int
		text   string
	}{{404, "The model `x` does not exist."}, {400, "template: conversation roles must alternate"}} {
		r := &simulated{faults: enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: tc.status, Body: fmt.Sprintf(`{"error":{"message":%q,"type":"BadRequestError","param":null,"code":%d}}`, tc.text, tc.status)}}}
		rep := serve(t, "a", r)
		pool := start(t, tokenizer.DefaultConfig())
		for range 10 { // more often than a breaker would bear
			_, err := pool.Encode(context.Background(), tokenizer.Request{Prompt: read(t, `{"prompt":"x"}`), Replicas: []*replica.Replica{rep}, Pool: model})
			var fault *tokenizer.ClientFault
			if !errors.As(err, &fault) || fault.Status != tc.status || !strings.Contains(string(fault.Body), tc.text) {
				t.Fatalf("%d: Encode() error = %v, want a client fault %d with %q", tc.status, err, tc.status, tc.text)
			}
		}
		r.SetFaults(enginesim.Faults{})
		if enc := encode(t, pool, `{"prompt":"x"}`, rep); enc.Source == tokenizer.SourceNone {
			t.Errorf("%d: the endpoint was shut by client faults: %s", tc.status, enc.Reason)
		}
	}
}

func TestAnUntrustedTemplateIsTheClientsFault(t *testing.T) {
	rep := serve(t, "a", &simulated{})
	_, err := start(t, tokenizer.DefaultConfig()).Encode(context.Background(), tokenizer.Request{
		Prompt:   read(t, `{"messages":[{"role":"user","content":"x"}],"chat_template":"{{ x }}"}`),
		Replicas: []*replica.Replica{rep}, Pool: model,
	})
	var fault *tokenizer.ClientFault
	if !errors.As(err, &fault) || fault.Status != 400 {
		t.Errorf("Encode() error = %v, want a client fault 400", err)
	}
}

// Every fault of a tokenizer ends as no ids with a reason, and with a second replica it does
// not even cost the ids.
func TestTokenizerFaultsNeverFailARequest(t *testing.T) {
	cfg := tokenizer.DefaultConfig()
	cfg.Remote.Timeout = 300 * time.Millisecond
	for _, tc := range []struct {
		name, reason string
		faults       enginesim.Faults
	}{
		{"hang", "timeout", enginesim.Faults{ConnectionFaults: enginesim.ConnectionFaults{Hang: true}}},
		{"half a body", "connect", enginesim.Faults{ConnectionFaults: enginesim.ConnectionFaults{HalfBody: true}}},
		{"an object without tokens", "malformed", enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Body: `{"count":3,"ids":[1,2,3]}`}}},
		{"no JSON", "malformed", enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Body: "<html>ok</html>"}}},
		{"500", "status", enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 500}}},
		{"500 with a string code", "status", enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 500, StringCodes: true}}},
		{"503 with a string", "status", enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Scaling: true}}},
		{"429", "status", enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 429, RetryAfter: 1}}},
		{"401", "auth", enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 401, Body: `{"error":"Unauthorized"}`}}},
		{"no route", "unsupported", enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 404, Body: `{"detail":"Not Found"}`}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := cfg
			bad := &simulated{faults: tc.faults}
			badRep := serve(t, "bad", bad)
			enc := encode(t, start(t, cfg), `{"prompt":"The quick"}`, badRep)
			if enc.Source != tokenizer.SourceNone || enc.Reason != tc.reason {
				t.Errorf("alone: source %s (%q), want none (%q)", enc.Source, enc.Reason, tc.reason)
			}
			cfg.Remote.Timeout = 5 * time.Second
			good := serve(t, "good", &simulated{})
			pool := start(t, cfg)
			for _, text := range []string{"a", "b", "c", "d"} {
				if enc := encode(t, pool, `{"prompt":`+quoted(text)+`}`, badRep, good); enc.Source != tokenizer.SourceTokenize {
					t.Errorf("beside a good one: source %s (%q), want tokenize", enc.Source, enc.Reason)
				}
			}
		})
	}
}

func TestASlowReplicaIsHedged(t *testing.T) {
	slow := &simulated{faults: enginesim.Faults{ConnectionFaults: enginesim.ConnectionFaults{Slow: enginesim.Duration(time.Second)}}}
	a, b := serve(t, "slow", slow), serve(t, "fast", &simulated{})
	pool := start(t, tokenizer.DefaultConfig())
	for i := range 4 {
		from := time.Now()
		encode(t, pool, `{"prompt":`+quoted(strings.Repeat("x", i+1))+`}`, a, b)
		if took := time.Since(from); took > 800*time.Millisecond {
			t.Errorf("prompt %d took %v although one replica is fast", i, took)
		}
	}
}

func TestExactCacheAndWhatIsInItsKey(t *testing.T) {
	r := &simulated{}
	rep := serve(t, "a", r)
	pool := start(t, tokenizer.DefaultConfig())
	bodies := []string{
		`{"prompt":"one"}`, `{"prompt":"two"}`, `{"prompt":"one","add_special_tokens":false}`, `{"prompt":["one","two"]}`,
		`{"messages":[{"role":"user","content":"one"}]}`,
		`{"messages":[{"role":"user","content":"one"}],"tools":[{"type":"function"}]}`,
		`{"messages":[{"role":"user","content":"one"}],"chat_template_kwargs":{"enable_thinking":false}}`,
		`{"messages":[{"role":"user","content":"one"}],"add_generation_prompt":false}`,
		`{"messages":[{"role":"user","content":"on"},{"role":"user","content":"e"}]}`,
	}
	want := map[string][]uint32{}
	for _, body := range bodies {
		enc := encode(t, pool, body, rep)
		if enc.Source != tokenizer.SourceTokenize {
			t.Errorf("%s: first source is %s", body, enc.Source)
		}
		want[body] = enc.IDs
	}
	calls := r.calls("/")
	for _, body := range bodies {
		enc := encode(t, pool, body, rep)
		if enc.Source != tokenizer.SourceExactCache || !slices.Equal(enc.IDs, want[body]) {
			t.Errorf("%s: second source is %s with %v, want exact_cache with %v", body, enc.Source, enc.IDs, want[body])
		}
	}
	if r.calls("/") != calls {
		t.Errorf("%d calls for cached prompts", r.calls("/")-calls)
	}
}

func TestConcurrentCallersShareOneCall(t *testing.T) {
	r := &simulated{faults: enginesim.Faults{ConnectionFaults: enginesim.ConnectionFaults{Slow: enginesim.Duration(50 * time.Millisecond)}}}
	rep := serve(t, "a", r)
	pool := start(t, tokenizer.DefaultConfig())
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			enc, err := pool.Encode(context.Background(), tokenizer.Request{Prompt: read(t, `{"prompt":"shared"}`), Replicas: []*replica.Replica{rep}, Pool: model})
			if err != nil || len(enc.IDs) == 0 {
				t.Errorf("Encode() = %+v, %v", enc, err)
			}
		})
	}
	wg.Wait()
	if n := r.calls("/"); n != 1 {
		t.Errorf("20 callers made %d calls, want 1", n)
	}
}

func TestOneCallerLeavingDoesNotDisturbTheOthers(t *testing.T) {
	r := &simulated{faults: enginesim.Faults{ConnectionFaults: enginesim.ConnectionFaults{Slow: enginesim.Duration(100 * time.Millisecond)}}}
	rep := serve(t, "a", r)
	pool := start(t, tokenizer.DefaultConfig())
	req := tokenizer.Request{Prompt: read(t, `{"prompt":"shared"}`), Replicas: []*replica.Replica{rep}, Pool: model}
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan *tokenizer.Encoding)
	go func() {
		enc, _ := pool.Encode(ctx, req)
		left <- enc
	}()
	eventually(t, "the call", func() bool { return r.calls("/") == 1 })
	stays := make(chan *tokenizer.Encoding)
	go func() {
		enc, _ := pool.Encode(context.Background(), req)
		stays <- enc
	}()
	cancel()
	if enc := <-left; enc.Source != tokenizer.SourceNone || enc.Reason != "cancelled" {
		t.Errorf("the leaver got %s (%q)", enc.Source, enc.Reason)
	}
	if enc := <-stays; enc.Source != tokenizer.SourceTokenize {
		t.Errorf("the other got %s (%q)", enc.Source, enc.Reason)
	}
}

func TestTruncationIsAppliedToTheIDs(t *testing.T) {
	rep := serve(t, "a", &simulated{})
	pool := start(t, tokenizer.DefaultConfig())
	all := encode(t, pool, `{"prompt":"The quick brown fox jumps"}`, rep).IDs
	for body, want := range map[string][]uint32{
		`{"prompt":"The quick brown fox jumps","truncate_prompt_tokens":3}`:                           all[len(all)-3:],
		`{"prompt":"The quick brown fox jumps","truncate_prompt_tokens":3,"truncation_side":"right"}`: all[:3],
		`{"prompt":"The quick brown fox jumps","truncate_prompt_tokens":-1}`:                          all,
		`{"prompt":[1,2,3,4],"truncate_prompt_tokens":2}`:                                             {3, 4},
	} {
		if got := encode(t, pool, body, rep).IDs; !slices.Equal(got, want) {
			t.Errorf("%s: ids are %v, want %v", body, got, want)
		}
	}
}

func TestHashesAreThoseOfTheIDs(t *testing.T) {
	rep := serve(t, "a", &simulated{})
	pool := start(t, tokenizer.DefaultConfig())
	enc := encode(t, pool, `{"prompt":`+quoted(strings.Repeat("The quick brown fox. ", 50))+`}`, rep)
	for _, ns := range []blockhash.Namespace{{}, {Adapter: "x"}, {Salt: "y"}, {}} {
		for _, size := range []int{4, 16} {
			if got, want := enc.Hashes(size, ns), blockhash.Chain(nil, enc.IDs, size, ns); !slices.Equal(got, want) {
				t.Errorf("Hashes(%d, %+v) differ from Chain's", size, ns)
			}
		}
	}
}

// A choice asks for the hashes of the client's own ids twice, for the index and for the booking.
func TestHashesOfGivenIDsAreComputedOnce(t *testing.T) {
	rep := serve(t, "a", &simulated{})
	enc := encode(t, start(t, tokenizer.DefaultConfig()), `{"prompt":[1,2,3,4,5,6,7,8,9]}`, rep)
	first, again := enc.Hashes(4, blockhash.Namespace{}), enc.Hashes(4, blockhash.Namespace{})
	if !slices.Equal(first, blockhash.Chain(nil, enc.IDs, 4, blockhash.Namespace{})) || &first[0] != &again[0] {
		t.Errorf("hashes %v, and %v when asked again", first, again)
	}
	if other := enc.Hashes(4, blockhash.Namespace{Salt: "x"}); slices.Equal(other, first) {
		t.Error("another namespace has the same hashes")
	}
}

func TestApproximateHashesFollowTheText(t *testing.T) {
	long := strings.Repeat("once upon a time ", 40)
	of := func(body string) []blockhash.Hash {
		return tokenizer.ApproximateHashes(nil, read(t, body), 16, blockhash.Namespace{})
	}
	a := of(`{"messages":[{"role":"user","content":` + quoted(long+"A") + `}]}`)
	b := of(`{"messages":[{"role":"user","content":` + quoted(long+"B") + `}]}`)
	if len(a) < 5 || a[0] != b[0] || a[4] != b[4] {
		t.Errorf("prompts that begin alike share %v and %v", a, b)
	}
	c := of(`{"messages":[{"role":"user","content":` + quoted("X"+long) + `}]}`)
	if slices.Contains(a, c[0]) {
		t.Error("prompts that begin differently share a chunk")
	}
	salted := tokenizer.ApproximateHashes(nil, read(t, `{"prompt":`+quoted(long)+`}`), 16, blockhash.Namespace{Salt: "s"})
	if plain := of(`{"prompt":` + quoted(long) + `}`); plain[0] == salted[0] {
		t.Error("the namespace is not part of the name")
	}
	if got := tokenizer.ApproximateHashes(nil, &prompt.Prompt{}, 16, blockhash.Namespace{}); len(got) != 0 {
		t.Errorf("nothing has %d chunks", len(got))
	}
}

// The longest prompt of a request is what the context must hold, as the engine will have cut it.
func TestTheLongestPromptCounts(t *testing.T) {
	rep := serve(t, "a", &simulated{})
	rep.Models = []replica.Model{{ID: model, MaxLen: 20}}
	pool := start(t, tokenizer.DefaultConfig())
	for body, want := range map[string]struct{ longest, tokens int }{
		`{"prompt":[1,2,3,4]}`:                                                                           {4, 4},
		`{"prompt":[[1,2,3,4],[5],[1,2,3,4,5,6]]}`:                                                       {6, 11},
		`{"prompt":[[1,2,3,4],[5],[1,2,3,4,5,6]],"truncate_prompt_tokens":3}`:                            {3, 7},
		`{"prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"truncate_prompt_tokens":-1,"max_tokens":8}`: {0, 12},
		`{"prompt":[1,2,3,4],"truncate_prompt_tokens":-1}`:                                               {0, 4},
		`{"prompt":[1,2,3,4,5,6,7,8,9,10,11,12],"truncate_prompt_tokens":-1}`:                            {0, 12},
	} {
		enc := encode(t, pool, body, rep)
		if enc.Longest() != want.longest || enc.Tokens != want.tokens {
			t.Errorf("%s: longest %d of %d tokens, want %d of %d", body, enc.Longest(), enc.Tokens, want.longest, want.tokens)
		}
	}
	cut := encode(t, pool, `{"prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"truncate_prompt_tokens":-1,"max_tokens":8}`, rep)
	if !slices.Equal(cut.IDs, []uint32{5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}) {
		t.Errorf("the ids that the engine keeps: %v", cut.IDs)
	}
	if unknown := encode(t, pool, `{"prompt":[1,2,3,4,5,6,7,8,9,10,11,12],"truncate_prompt_tokens":-1}`, rep); unknown.Source != tokenizer.SourceNone || unknown.Longest() != 0 {
		t.Errorf("what the engine cuts without saying where has ids: %+v", unknown)
	}
	texts := encode(t, pool, `{"prompt":["The quick brown fox","jumps"]}`, rep)
	if texts.Longest() >= texts.Tokens || texts.Longest() == 0 {
		t.Errorf("two texts of %d tokens: the longest has %d", texts.Tokens, texts.Longest())
	}
}
