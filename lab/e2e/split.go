package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// splits are the checks of requests whose prompt one engine computes while another one writes the answer.
type splits struct {
	stack
	// letters are the ids of tokens whose text is whole characters, nonce distinguishes the prompts of one run from another's.
	letters []uint32
	nonce   int
}

func (r *run) splitChecks(ctx context.Context) {
	s := &splits{stack: r.stack, nonce: int(time.Now().UnixNano() % 1e9)}
	r.check(ctx, "texts of split requests", s.checkTexts)
	r.check(ctx, "conversation that is split", s.checkTurns)
	r.check(ctx, "copied prefix", s.checkCopy)
	r.check(ctx, "one request id for all", s.checkCrossTalk)
	r.check(ctx, "time of transfers", s.checkTimes)
	r.check(ctx, "clients that leave", s.checkLeavers)
	r.check(ctx, "the one that prefills hangs", func(ctx context.Context) (string, error) { return s.checkHang(ctx, 0) })
	r.check(ctx, "the one that decodes hangs", func(ctx context.Context) (string, error) { return s.checkHang(ctx, 1) })
	r.check(ctx, "kill -9 of the one that prefills", func(ctx context.Context) (string, error) { return s.checkKill(ctx, 0) })
	r.check(ctx, "kill -9 of the one that decodes", func(ctx context.Context) (string, error) { return s.checkKill(ctx, 1) })
}

// shared is a request that is to be split, with the answer that one engine gives.
type shared struct {
	path string
	body object
	want string // the text
}

// answered is what a client made of an answer.
type answered struct {
	text, prefill, replica string
	prompt, output, cached int
	took                   time.Duration
}

// make makes up request n, of so many words, and has one engine answer it by itself.
func (s *splits) make(ctx context.Context, n, words, tokens int) (*shared, error) {
	if s.letters == nil {
		var err error
		if s.letters, err = s.fleet.letters(ctx); err != nil {
			return nil, err
		}
	}
	prompt := s.prompt(n, words)
	r := &shared{path: "/v1/completions", body: object{"prompt": prompt}}
	if n%2 == 0 {
		r.path, r.body = "/v1/chat/completions", object{"messages": []object{{"role": "user", "content": prompt}}}
	}
	maps.Copy(r.body, object{
		"model": "tiny", "temperature": 0, "max_tokens": tokens, "ignore_eos": true, "repetition_penalty": 1.3, "allowed_token_ids": s.letters,
	})
	alone, err := s.ask(ctx, s.engines[len(s.engines)-1].url(), r, n%4 < 2, object{"cache_salt": "alone"})
	r.want = alone.text
	if err == nil && (alone.text == "" || alone.output != tokens) {
		err = fmt.Errorf("one engine answers %+v", alone)
	}
	return r, err
}

// makeAll makes up requests from number first on.
func (s *splits) makeAll(ctx context.Context, first, count, words, tokens int) ([]*shared, error) {
	list := make([]*shared, count)
	failed := make([]error, count)
	slots := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i := range list {
		slots <- struct{}{}
		wg.Go(func() {
			list[i], failed[i] = s.make(ctx, first+i, words, tokens)
			<-slots
		})
	}
	wg.Wait()
	for _, err := range failed {
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// prompt is one that begins as no other does.
func (s *splits) prompt(n, count int) string {
	return fmt.Sprintf("%d of run %d: ", n, s.nonce) + words(rand.New(rand.NewPCG(uint64(n), uint64(s.nonce))), count)
}

// ask sends a request, as a stream or not, and reads the answer. Anything but a whole answer is an error.
func (s *splits) ask(ctx context.Context, url string, r *shared, stream bool, more object, header ...string) (a answered, err error) {
	body := maps.Clone(r.body)
	maps.Copy(body, more)
	if stream {
		body["stream"], body["stream_options"] = true, object{"include_usage": true}
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return a, err
	}
	began := time.Now()
	defer func() { a.took = time.Since(began) }()
	resp, err := open(ctx, http.MethodPost, url+r.path, raw, header...)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	a.prefill, a.replica = resp.Header.Get("X-Kvpilot-Prefill"), resp.Header.Get("X-Kvpilot-Replica")
	if err != nil || resp.StatusCode != http.StatusOK {
		return a, fmt.Errorf("status %d: %.300s: %w", resp.StatusCode, all, errorOr(err))
	}
	if !stream {
		return a, a.read(all)
	}
	done := false
	for line := range bytes.Lines(all) {
		data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: "))
		if done = string(data) == "[DONE]"; !ok || done {
			continue
		}
		if err := a.read(data); err != nil {
			return a, err
		}
	}
	if !bytes.HasSuffix(all, []byte("data: [DONE]\n\n")) {
		return a, fmt.Errorf("the stream ends with %.200q", all[max(0, len(all)-200):])
	}
	return a, nil
}

func errorOr(err error) error {
	if err == nil {
		return errStatus
	}
	return err
}

// errStatus is why an answer with another status than 200 is not used.
var errStatus = fmt.Errorf("the answer is not 200")

// read reads an answer, or an event of a stream.
func (a *answered) read(data []byte) error {
	var v struct {
		Choices []struct {
			Text           string
			Message, Delta struct{ Content string }
		}
		Usage *struct {
			Prompt  int `json:"prompt_tokens"`
			Output  int `json:"completion_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
		Error any
	}
	if err := json.Unmarshal(data, &v); err != nil || v.Error != nil {
		return fmt.Errorf("%.300s: %w", data, errorOr(err))
	}
	for _, c := range v.Choices {
		a.text += c.Text + c.Message.Content + c.Delta.Content
	}
	if v.Usage != nil {
		a.prompt, a.output, a.cached = v.Usage.Prompt, v.Usage.Output, v.Usage.Details.Cached
	}
	return nil
}

// checkTexts: chat and completions, streamed and not, have the text of one engine, and the records say split.
func (s *splits) checkTexts(ctx context.Context) (string, error) {
	list, err := s.makeAll(ctx, 0, 40, 400, 24)
	if err != nil {
		return "", err
	}
	handed, err := s.router.counter(ctx, "kvpilot_tokenizer_handoffs_total", "")
	if err != nil {
		return "", err
	}
	before, err := s.hits(ctx)
	if err != nil {
		return "", err
	}
	pairs, moved := map[string]int{}, 0
	for i, r := range list {
		id := fmt.Sprintf("split-%d-%d", s.nonce, i)
		a, err := s.ask(ctx, s.router.url(), r, i%4 < 2, nil, "X-Request-Id", id)
		if err != nil {
			return "", fmt.Errorf("request %d: %w", i, err)
		}
		d, err := s.router.decided(ctx, id)
		if err != nil {
			return "", fmt.Errorf("request %d: %w", i, err)
		}
		w := d.GetWays()[0]
		switch o := d.GetOutcome(); {
		case a.text != r.want:
			return "", fmt.Errorf("request %d: the text is %q, want %q", i, a.text, r.want)
		case a.prefill == "" || w.GetKind() != "split" || w.GetPrefillReplicaId() != a.prefill || w.GetDecodeReplicaId() != a.replica:
			return "", fmt.Errorf("request %d: the headers name %s and %s, the record %v", i, a.prefill, a.replica, w)
		case s.found(&a, d) != int(o.GetPredictedCachedTokens()) || s.found(&a, d) != int(o.GetCachedTokens()):
			return "", fmt.Errorf("request %d: %d cached tokens, recorded %v", i, a.cached, o)
		}
		pairs[a.prefill+">"+a.replica]++
		moved += int(w.GetMovedTokens())
	}
	after, err := s.hits(ctx)
	if err != nil {
		return "", err
	}
	if after-before != float64(moved) && !s.sim {
		return "", fmt.Errorf("%d tokens were to move, the engines count %v", moved, after-before)
	}
	now, err := s.router.counter(ctx, "kvpilot_tokenizer_handoffs_total", "")
	if err != nil {
		return "", err
	}
	took, err := s.unpinned(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d requests, %v, %d tokens moved as predicted; %v hand-overs; nothing pinned after %.1f s", len(list), pairs, moved, now-handed, took.Seconds()), nil
}

// checkTurns plays conversations: the engines hold parts of the prompts.
func (s *splits) checkTurns(ctx context.Context) (string, error) {
	turns, cached, right, split := 0, 0, 0, 0
	for n := range 5 {
		r := &shared{path: "/v1/chat/completions", body: object{"model": "tiny", "temperature": 0, "max_tokens": 24, "ignore_eos": true, "repetition_penalty": 1.3, "allowed_token_ids": s.letters}}
		var messages []object
		for turn := range 4 {
			messages = append(messages, object{"role": "user", "content": s.prompt(1000+10*n+turn, 150)})
			r.body["messages"] = messages
			alone, err := s.ask(ctx, s.engines[len(s.engines)-1].url(), r, false, object{"cache_salt": "alone"})
			if err != nil {
				return "", err
			}
			id := fmt.Sprintf("turn-%d-%d-%d", s.nonce, n, turn)
			a, err := s.ask(ctx, s.router.url(), r, turn%2 == 0, nil, "X-Request-Id", id)
			if err != nil {
				return "", fmt.Errorf("chat %d, turn %d: %w", n, turn, err)
			}
			d, err := s.router.ended(ctx, id)
			if err != nil {
				return "", err
			}
			if a.text != alone.text {
				return "", fmt.Errorf("chat %d, turn %d, %s and %s: %q, want %q", n, turn, a.prefill, a.replica, a.text, alone.text)
			}
			if turns++; s.found(&a, d) == int(d.GetOutcome().GetPredictedCachedTokens()) {
				right++
			}
			if a.prefill != "" { // a prompt whose length is estimated is not split
				split++
			}
			cached += s.found(&a, d)
			messages = append(messages, object{"role": "assistant", "content": a.text})
			time.Sleep(50 * time.Millisecond) // the last block's event is under way
		}
	}
	if cached == 0 || right < turns || split < turns/4 {
		return "", fmt.Errorf("of %d turns %d were split, %d predicted rightly, %d cached tokens", turns, split, right, cached)
	}
	return fmt.Sprintf("%d turns, %d of them split, texts as of one engine, cached tokens (%d) as predicted", turns, split, cached), nil
}

// checkCrossTalk: requests under one id of the client, all at once, get the answers to their own prompts.
func (s *splits) checkCrossTalk(ctx context.Context) (string, error) {
	list, err := s.makeAll(ctx, 2000, 200, 120, 16)
	if err != nil {
		return "", err
	}
	out := s.all(ctx, list, len(list), nil, "X-Request-Id", "the-same")
	whole, err := out.judge(list)
	if err != nil {
		return "", err
	}
	took, err := s.unpinned(ctx)
	if err != nil {
		return "", err
	}
	if whole > len(list)/10 {
		return "", fmt.Errorf("%d of %d were served whole", whole, len(list))
	}
	return fmt.Sprintf("%d requests at once, every text right, %d served whole, the slowest in %.1f s; nothing pinned after %.1f s", len(list), whole, out.slowest().Seconds(), took.Seconds()), nil
}
