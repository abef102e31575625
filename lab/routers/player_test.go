package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/sim/replay"
)

// engine answers every request with three chunks, 20 ms to the first one and 10 ms between them; a prompt
// that contains a key of spoiled is answered as the value says.
func engine(t *testing.T, spoiled map[string]func(http.ResponseWriter)) (url string, bodies func() []string) {
	t.Helper()
	var mu sync.Mutex
	var seen []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		mu.Lock()
		seen = append(seen, string(raw))
		mu.Unlock()
		for mark, answer := range spoiled {
			if strings.Contains(string(raw), mark) {
				answer(w)
				return
			}
		}
		send := func(format string, args ...any) {
			fmt.Fprintf(w, "data: "+format+"\n\n", args...)
			_ = http.NewResponseController(w).Flush() // the client may have left
		}
		time.Sleep(20 * time.Millisecond)
		send(`{"choices":[{"delta":{"role":"assistant","content":""}}]}`)
		for n := range 3 {
			if n > 0 {
				time.Sleep(10 * time.Millisecond)
			}
			send(`{"choices":[{"index":0,"delta":{"content":" w\"%d"}}]}`, n)
		}
		send(`{"choices":[],"usage":{"prompt_tokens":100,"total_tokens":103,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":64}}}`)
		send("[DONE]")
	}))
	t.Cleanup(server.Close)
	return server.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return seen
	}
}

func TestThePlayerMeasuresAnswers(t *testing.T) {
	url, bodies := engine(t, nil)
	w := &trace{Trace: &replay.Trace{Chunk: 512, Calls: []replay.Call{
		{At: 0, In: 40, Out: 3, IDs: []uint64{1}, Prev: -1}, {At: .05, In: 90, Out: 3, IDs: []uint64{1}, Prev: -1},
	}, After: []int{-1, 0}}}
	p := &player{trace: w, times: []float64{0.06, 0.07}, api: "chat", urls: []string{url}, limit: 5 * time.Second}
	list := p.play(context.Background())
	for i, o := range list {
		if !o.done || o.err != "" || o.ttft < 20*time.Millisecond || o.last < o.ttft+20*time.Millisecond || o.whole < o.last {
			t.Errorf("call %d: %+v", i, o)
		}
		if o.prompt != 100 || o.output != 3 || o.cached != 64 {
			t.Errorf("call %d: usage %+v", i, o)
		}
	}
	if list[1].waited <= 0 {
		t.Errorf("the second turn did not wait for the first answer: %+v", list[1])
	}
	sent := bodies()
	if len(sent) != 2 || !strings.Contains(sent[1], `{"role":"assistant","content":" w\"0 w\"1 w\"2"}`) {
		t.Errorf("the second turn has not the first answer: %s", sent)
	}
	f := summarize(w, list)
	if f.Requests != 2 || f.Errors != 0 || f.Good != 1 || f.Cached != 0.64 || f.Stood != 1 || f.TPOT < 0.01 {
		t.Errorf("%+v", f)
	}
}

func TestThePlayerTellsFailures(t *testing.T) {
	url, _ := engine(t, map[string]func(http.ResponseWriter){
		"max_tokens\":11": func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) },
		"max_tokens\":12": func(w http.ResponseWriter) { fmt.Fprint(w, "data: {\"choices\":[]}\n\n") },
		"max_tokens\":13": func(w http.ResponseWriter) { fmt.Fprint(w, "data: {\"error\":{\"code\":500}}\n\ndata: [DONE]\n\n") },
		"max_tokens\":14": func(w http.ResponseWriter) { fmt.Fprint(w, "data: [DONE]\n\n") },
		"max_tokens\":15": func(http.ResponseWriter) { time.Sleep(time.Second) },
	})
	w := &trace{Trace: &replay.Trace{Chunk: 512}}
	for n := range 5 {
		w.Calls = append(w.Calls, replay.Call{In: 40, Out: 11 + n, IDs: []uint64{1}, Prev: -1})
		w.After = append(w.After, -1)
	}
	w.Calls = append(w.Calls, replay.Call{In: 90, Out: 1, IDs: []uint64{1}, Prev: -1}) // never sent: what it continues failed
	w.After = append(w.After, 0)
	p := &player{trace: w, times: make([]float64, 6), api: "chat", urls: []string{url}, limit: 400 * time.Millisecond}
	list := p.play(context.Background())
	for i, want := range []string{"status 429", "before its end mark", "error in the stream", "without a token"} {
		if !strings.Contains(list[i].err, want) {
			t.Errorf("call %d: %q, want %q", i, list[i].err, want)
		}
	}
	f := summarize(w, list)
	if f.Requests != 5 || f.Errors != 4 || f.Unfinished != 1 || f.TTFT < 0.3 {
		t.Errorf("%+v", f)
	}
}

func TestAClosedLoopThinks(t *testing.T) {
	url, bodies := engine(t, nil)
	w := &trace{Trace: &replay.Trace{Chunk: 512, Closed: true, Calls: []replay.Call{
		{In: 40, Out: 3, IDs: []uint64{1}, Prev: -1}, {At: .2, In: 90, Out: 3, IDs: []uint64{1}, Prev: 0},
		{At: .1, In: 50, Out: 3, IDs: []uint64{7}, Prev: 1},
	}, After: []int{-1, 0, -1}}}
	p := &player{trace: w, times: w.times(1, 1), api: "chat", urls: []string{url}, limit: 5 * time.Second}
	began := time.Now()
	list := p.play(context.Background())
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("three answers and two pauses took %v", took)
	}
	if !list[2].done || strings.Contains(bodies()[2], "assistant") {
		t.Errorf("a new session continues the one before: %s", bodies()[2])
	}
}

func TestTimes(t *testing.T) {
	w := plain(&replay.Trace{Chunk: 512, Calls: []replay.Call{{At: 0, Prev: -1}, {At: 0, Prev: -1}, {At: 10, Prev: -1}, {At: 20, Prev: -1}}})
	at := w.times(0.4, 1) // twice the trace's own rate
	if at[2] != 5 || at[3] != 10 || at[0] == at[1] || at[0] < 0 || at[1] > 5 {
		t.Errorf("%v", at)
	}
}

// An answer in one piece has its end alone.
func TestThePlayerReadsWholeAnswers(t *testing.T) {
	url, bodies := engine(t, map[string]func(http.ResponseWriter){
		"max_tokens\":3": func(w http.ResponseWriter) {
			fmt.Fprint(w, `{"choices":[{"message":{"role":"assistant","content":" w\"0"}}],"usage":{"prompt_tokens":100,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":64}}}`)
		},
		"max_tokens\":4": func(w http.ResponseWriter) { fmt.Fprint(w, `{"choices":[]}`) },
		"max_tokens\":5": func(w http.ResponseWriter) { fmt.Fprint(w, `{"choices":`) },
	})
	w := &trace{Trace: &replay.Trace{Chunk: 512, Calls: []replay.Call{
		{In: 40, Out: 3, IDs: []uint64{1}, Prev: -1}, {In: 90, Out: 3, IDs: []uint64{1}, Prev: -1}, {In: 40, Out: 4, IDs: []uint64{1}, Prev: -1}, {In: 40, Out: 5, IDs: []uint64{1}, Prev: -1},
	}, After: []int{-1, 0, -1, -1}}}
	p := &player{trace: w, times: make([]float64, 4), api: "chat", unstreamed: true, urls: []string{url}, limit: 5 * time.Second}
	list := p.play(context.Background())
	for i, o := range list[:2] {
		if !o.done || o.err != "" || o.ttft <= 0 || o.last != o.ttft || o.prompt != 100 || o.output != 3 || o.cached != 64 {
			t.Errorf("call %d: %+v", i, o)
		}
	}
	if list[2].err != "an answer without a token" || list[3].err == "" {
		t.Errorf("%q, %q", list[2].err, list[3].err)
	}
	for _, sent := range bodies() {
		if strings.Contains(sent, "stream") {
			t.Errorf("a stream is asked for: %s", sent)
		}
	}
	if sent := strings.Join(bodies(), "\n"); !strings.Contains(sent, `{"role":"assistant","content":" w\"0"}`) {
		t.Errorf("the second turn has not the first answer: %s", sent)
	}
}
