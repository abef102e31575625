package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// checkYield has a long prompt give way to short ones on one rank that prefills in chunks: the short
// ones must not wait for its rest, and it must go on from what the engine kept.
func (r *run) checkYield(ctx context.Context) (string, error) {
	alone := *r
	alone.logs = filepath.Join(r.logs, "yield")
	alone.extra = "chooser: {yield_ranks: 1}\n"
	if err := os.MkdirAll(alone.logs, 0o755); err != nil {
		return "", err
	}
	if err := r.startLong(ctx, &alone); err != nil {
		return "", err
	}
	alone.fleet, alone.router = []*engine{r.long}, nil
	defer func() {
		if alone.router != nil {
			alone.router.stop()
		}
	}()
	if err := alone.startRouter(ctx); err != nil {
		return "", err
	}
	return alone.yields(ctx)
}

// startLong starts the replica that reads long prompts, unless an earlier run left it running.
func (r *run) startLong(ctx context.Context, alone *run) error {
	r.long = &engine{r: alone, id: "vllm-long", shape: long}
	if kept := r.kept().Long; kept != nil {
		r.long.adopt(*kept)
		return r.long.wait(ctx, startWait)
	}
	if err := r.long.launchNew(ctx); err != nil {
		return err
	}
	return r.remember()
}

// timed is a stream with what its client saw of it.
type timed struct {
	id          string
	sent, first time.Time
	text        string
	prompt      int // tokens by the engine's count
	cached      int
	output      int
	err         error
}

func (t timed) ttft() time.Duration { return t.first.Sub(t.sent) }

// longWords and shortWords are the prompts' lengths: about 12,000 tokens and about 60.
const (
	longWords  = 5000
	shortWords = 25
)

func (r *run) yields(ctx context.Context) (string, error) {
	dice := rand.New(rand.NewPCG(11, uint64(time.Now().UnixNano())))
	// A few prompts teach the router how fast the rank is; the last one tells it to us.
	var usual timed
	for i, n := range []int{longWords / 4, longWords / 2, longWords, longWords / 2, longWords} {
		if usual = r.chat(ctx, fmt.Sprintf("e2e-warm-%d", i), words(dice, n), 4); usual.err != nil {
			return "", usual.err
		}
	}
	text := words(dice, longWords)
	done := make(chan timed, 1)
	go func() { done <- r.chat(ctx, "e2e-long", text, 16) }()
	var shorts []timed
	began := time.Now()
	for i, share := range []float64{0.1, 0.25} {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(began.Add(time.Duration(share * float64(usual.ttft()))))):
		}
		s := r.chat(ctx, fmt.Sprintf("e2e-short-%d", i), words(dice, shortWords), 1)
		if s.err != nil {
			return "", s.err
		}
		shorts = append(shorts, s)
	}
	got := <-done
	if got.err != nil {
		return "", got.err
	}
	again := r.chat(ctx, "e2e-again", text, 16)
	if again.err != nil {
		return "", again.err
	}
	if got.text != again.text || got.output != again.output || got.prompt != again.prompt {
		return "", fmt.Errorf("the answer of the prompt that gave way has %d tokens for %d, %q; the same prompt again %d for %d, %q",
			got.output, got.prompt, got.text, again.output, again.prompt, again.text)
	}
	var waits []string
	for _, s := range shorts {
		rest := got.first.Sub(s.sent)
		waits = append(waits, fmt.Sprintf("%.2f s where %.2f s of the long one were left", s.ttft().Seconds(), rest.Seconds()))
		if s.ttft() > rest*2/3 {
			return "", fmt.Errorf("short prompts waited: %s (alone a long one takes %.2f s)", strings.Join(waits, ", "), usual.ttft().Seconds())
		}
	}
	times, err := r.gaveWay(ctx, got)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d tokens, alone %.2f s, gave way %d times, found %d of its own tokens and took %.2f s; short ones took %s",
		got.prompt, usual.ttft().Seconds(), times, got.cached, got.ttft().Seconds(), strings.Join(waits, ", ")), nil
}

// gaveWay reads from the record how often the request gave way, and checks that the engine found
// something of it again, at least what the router counted on.
func (r *run) gaveWay(ctx context.Context, t timed) (int, error) {
	resp, err := r.router.api.Routing().ExplainDecision(ctx, &kvpilotv1.ExplainDecisionRequest{Key: &kvpilotv1.ExplainDecisionRequest_RequestId{RequestId: t.id}})
	if err != nil {
		return 0, err
	}
	list := resp.GetDecisions()
	for i, d := range list {
		want := kvpilotv1.End_END_YIELDED
		if i == len(list)-1 {
			want = kvpilotv1.End_END_COMPLETED
		}
		if end := d.GetOutcome().GetEnd(); end != want || d.GetResumes() != (i > 0) {
			return 0, fmt.Errorf("attempt %d of %d ended %v and resumes %t", i, len(list), end, d.GetResumes())
		}
	}
	times := len(list) - 1
	if times < 1 {
		return 0, errors.New("the long prompt never gave way")
	}
	if n, err := r.metric(ctx, "kvpilot_chooser_yields_total"); err != nil || n != times {
		return 0, fmt.Errorf("kvpilot_chooser_yields_total is %d, %w; the record has %d", n, err, times)
	}
	if counted := int(list[times].GetOutcome().GetPredictedCachedTokens()); t.cached == 0 || t.cached < counted {
		return 0, fmt.Errorf("of %d tokens the router counted on %d, the engine found %d", t.prompt, counted, t.cached)
	}
	return times, nil
}

// chat streams an answer of so many tokens to one message.
func (r *run) chat(ctx context.Context, id, text string, tokens int) timed {
	t := timed{id: id}
	raw, err := json.Marshal(object{
		"model": "tiny", "messages": []object{{"role": "user", "content": text}}, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
		"stream": true, "stream_options": object{"include_usage": true},
	})
	if err != nil {
		t.err = err
		return t
	}
	t.sent = time.Now()
	resp, err := open(ctx, http.MethodPost, r.router.url()+"/v1/chat/completions", raw, "X-Request-Id", id)
	if err != nil {
		t.err = err
		return t
	}
	defer resp.Body.Close() //nolint:errcheck // read to the end
	t.read(resp)
	return t
}

// read takes the events of the stream.
func (t *timed) read(resp *http.Response) {
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	whole := false
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if t.first.IsZero() {
			t.first = time.Now()
		}
		if whole = data == "[DONE]"; whole {
			continue
		}
		var a answer
		if t.err = json.Unmarshal([]byte(data), &a.value); t.err != nil {
			return
		}
		if piece, ok := a.at("choices", 0, "delta", "content").(string); ok {
			t.text += piece
		}
		if a.at("usage") != nil {
			t.prompt, t.output, t.cached = a.number("usage", "prompt_tokens"), a.number("usage", "completion_tokens"), a.cached()
		}
	}
	if err := lines.Err(); err != nil || !whole || resp.StatusCode != http.StatusOK {
		t.err = fmt.Errorf("%s: status %d, whole %t, %w", t.id, resp.StatusCode, whole, err)
	}
}

// metric reads one of the router's numbers, which has no labels.
func (r *run) metric(ctx context.Context, name string) (int, error) {
	_, text, err := call(ctx, http.MethodGet, "http://"+r.router.admin+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return int(f), err
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}
