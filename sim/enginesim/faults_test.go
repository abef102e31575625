package enginesim_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/sim/enginesim"
)

const endless = `{"model":"sim","prompt":"x","stream":true,"max_tokens":4000,"ignore_eos":true}`

func TestFaultsOfAnswers(t *testing.T) {
	r := start(t, fast())
	for _, c := range []struct {
		name   string
		faults enginesim.Faults
		code   int
		want   string
	}{
		{"500", enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 500}}, 500, `"type":"InternalServerError"`},
		{"string codes", enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 500, StringCodes: true}}, 500, `"code":"server_error"`},
		{"scaling", enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Scaling: true}}, 503, `{"error":"The model is currently scaling. Please try again later."}`},
		{"wrong json", enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{WrongJSON: true}}, 200, "this is no JSON"},
		{"429", enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 429, RetryAfter: 3}}, 429, `"code":429`},
		{"poison", enginesim.Faults{Where: enginesim.Where{Poison: "Say"}, AnswerFaults: enginesim.AnswerFaults{Status: 500}}, 200, `"object":"chat.completion"`},
		{"poisoned", enginesim.Faults{Where: enginesim.Where{Poison: hello[2:20]}, AnswerFaults: enginesim.AnswerFaults{Status: 500}}, 500, `"type":"InternalServerError"`},
		{"other paths", enginesim.Faults{Where: enginesim.Where{Paths: []string{"/tokenize"}}, AnswerFaults: enginesim.AnswerFaults{Status: 500}}, 200, `"object":"chat.completion"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.SetFaults(c.faults)
			code, body := r.post(t, "/v1/chat/completions", hello+`}`)
			if code != c.code || !strings.Contains(string(body), c.want) {
				t.Errorf("got %d %s, want %d %s", code, body, c.code, c.want)
			}
		})
	}
	r.SetFaults(enginesim.Faults{Where: enginesim.Where{Times: 2}, AnswerFaults: enginesim.AnswerFaults{Status: 500}})
	var codes []int
	for range 3 {
		code, _ := r.post(t, "/v1/chat/completions", hello+`}`)
		codes = append(codes, code)
	}
	if fmt.Sprint(codes) != "[500 500 200]" {
		t.Errorf("a fault for two requests gave %v", codes)
	}
}

func TestHalfABodyAndACutConnection(t *testing.T) {
	r := start(t, fast())
	r.SetFaults(enginesim.Faults{ConnectionFaults: enginesim.ConnectionFaults{HalfBody: true}})
	resp := r.send(t, t.Context(), "/v1/chat/completions", hello+`}`)
	_, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half a body gave %v, want an unexpected EOF", err)
	}
	r.SetFaults(enginesim.Faults{ConnectionFaults: enginesim.ConnectionFaults{Cut: true}})
	if _, err := r.client.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(hello+`}`)); err == nil {
		t.Error("a cut connection gave an answer")
	}
}

func TestStreamFaults(t *testing.T) {
	r := start(t, fast())
	read := func() ([]byte, error) {
		resp := r.send(t, t.Context(), "/v1/completions", endless)
		defer resp.Body.Close()
		return io.ReadAll(resp.Body)
	}
	r.SetFaults(enginesim.Faults{StreamFaults: enginesim.StreamFaults{DieAfter: 3}})
	if body, err := read(); err == nil || len(events(t, body)) < 3 {
		t.Errorf("a dying stream gave %v after %d events", err, len(events(t, body)))
	}
	r.SetFaults(enginesim.Faults{StreamFaults: enginesim.StreamFaults{ErrorAfter: 3}})
	body, err := read()
	list := events(t, body)
	if err != nil || len(list) != 5 || !strings.HasPrefix(list[3], `{"error":{`) || list[4] != "[DONE]" {
		t.Errorf("a failing stream gave %v, %q", err, list)
	}
	r.SetFaults(enginesim.Faults{StreamFaults: enginesim.StreamFaults{Empty: true}})
	if body, err := read(); err != nil || string(body) != "data: [DONE]\n\n" {
		t.Errorf("an empty stream gave %v, %q", err, body)
	}
	r.SetFaults(enginesim.Faults{StreamFaults: enginesim.StreamFaults{StallAfter: 3}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp := r.send(t, ctx, "/v1/completions", endless)
	lines := bufio.NewScanner(resp.Body)
	for got := 0; got < 3 && lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: ") {
			got++
		}
	}
	time.AfterFunc(50*time.Millisecond, cancel)
	for lines.Scan() {
		if lines.Text() != "" {
			t.Errorf("a stalled stream goes on: %s", lines.Text())
		}
	}
	resp.Body.Close()
	eventually(t, "all requests to be freed", func() bool { return r.Stats()[0].Running == 0 })
}

// However long the prompt is, the first token comes at once, and each further one after the same time.
func TestADrippingStream(t *testing.T) {
	cfg := fast()
	cfg.Core.Timing.Speed = 0.01 // a prompt takes seconds
	r := start(t, cfg)
	const every = 30 * time.Millisecond
	r.SetFaults(enginesim.Faults{StreamFaults: enginesim.StreamFaults{Drip: enginesim.Duration(every)}})
	began := time.Now()
	resp := r.send(t, t.Context(), "/v1/completions", `{"model":"sim","prompt":"`+strings.Repeat("word ", 500)+`","stream":true,"max_tokens":6,"ignore_eos":true}`)
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	took := time.Since(began)
	if list := events(t, body); err != nil || len(list) != 7 || !strings.Contains(list[5], `"finish_reason":"length"`) {
		t.Errorf("got %v, %q", err, list)
	}
	if took < 5*every || took > 5*every+2*time.Second {
		t.Errorf("six tokens took %s", took)
	}
	eventually(t, "nothing to be computed", func() bool { s := r.Stats()[0]; return s.Running == 0 && s.Waiting == 0 })
}

func TestAClientThatLeavesFreesItsBlocksAtOnce(t *testing.T) {
	r := start(t, fast())
	ctx, cancel := context.WithCancel(t.Context())
	resp := r.send(t, ctx, "/v1/completions", endless)
	if _, err := resp.Body.Read(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	if s := r.Stats()[0]; s.Running != 1 || s.Usage == 0 {
		t.Fatalf("running %d, usage %v while streaming", s.Running, s.Usage)
	}
	cancel()
	left := time.Now()
	eventually(t, "the blocks to be free", func() bool { s := r.Stats()[0]; return s.Running == 0 && s.Usage == 0 })
	if took := time.Since(left); took > time.Second {
		t.Errorf("the abort took %v", took)
	}
	eventually(t, "the record of the abort", func() bool {
		list := r.Requests()
		return list[len(list)-1].Finish == "abort"
	})
	if got := r.Stats()[0].Finished[3]; got != 1 {
		t.Errorf("%d aborted requests counted, want 1", got)
	}
}

func TestAStalledEngineGoesOn(t *testing.T) {
	r := start(t, fast())
	r.SetFaults(enginesim.Faults{EngineFaults: enginesim.EngineFaults{Stall: true}})
	done := make(chan int, 1)
	go func() {
		resp, err := r.client.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(hello+`}`))
		if err != nil {
			done <- 0
			return
		}
		resp.Body.Close()
		done <- resp.StatusCode
	}()
	eventually(t, "the request to wait", func() bool { return r.Stats()[0].Waiting == 1 })
	r.SetFaults(enginesim.Faults{})
	if code := <-done; code != 200 {
		t.Errorf("after the stall: %d", code)
	}
}

func TestTheEngineRemembersWhatItSaw(t *testing.T) {
	r := start(t, fast())
	parent := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	r.post(t, "/v1/chat/completions", hello+`}`, "Traceparent", parent, "X-Session-Id", "s1", "X-Request-Id", "r1")
	eventually(t, "the record", func() bool { return len(r.Requests()) == 1 && r.Requests()[0].Finish != "" })
	got := r.Requests()[0]
	if got.Traceparent != parent || got.Session != "s1" || got.RequestID != "r1" || got.PromptTokens == 0 || got.OutputTokens != 8 || got.Finish != "length" {
		t.Errorf("recorded %+v", got)
	}
}

func TestRequestsAreReadWhileTheyAreAnswered(t *testing.T) {
	r := start(t, fast())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100 {
			_, _ = r.get(t, "/metrics")
		}
	}()
	for answered := false; !answered; {
		for _, req := range r.Requests() {
			if req.Status != 0 && req.Status != 200 {
				t.Errorf("status %d", req.Status)
			}
		}
		select {
		case <-done:
			answered = true
		default:
		}
	}
}

func TestTheAdminRoutes(t *testing.T) {
	r := start(t, fast())
	if code, body := r.post(t, "/sim/faults", `{"slow":"1ms","status":500}`); code != 200 || !strings.Contains(string(body), `"slow":"1ms"`) {
		t.Errorf("setting faults: %d %s", code, body)
	}
	if code, _ := r.post(t, "/v1/chat/completions", hello+`}`); code != 500 {
		t.Errorf("with the fault: %d, want 500", code)
	}
	if code, body := r.post(t, "/sim/faults", `{"sloww":"1ms"}`); code != 400 {
		t.Errorf("an unknown fault: %d %s, want 400", code, body)
	}
	if code, _ := r.post(t, "/sim/faults", ``); code != 200 {
		t.Errorf("clearing faults: %d", code)
	}
	if code, body := r.get(t, "/sim/state"); code != 200 || !strings.Contains(string(body), `"life":1`) {
		t.Errorf("state: %d %s", code, body)
	}
	r.post(t, "/sim/restart", `{"down":"1ms"}`)
	eventually(t, "the second life", func() bool { return r.Lives() == 2 && r.Stats() != nil })
	if code, body := r.get(t, "/sim/requests"); code != 200 || !strings.Contains(string(body), `/v1/chat/completions`) {
		t.Errorf("requests: %d %s", code, body)
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodDelete, r.url+"/sim/requests", nil)
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if n := len(r.Requests()); n != 0 {
		t.Errorf("%d requests are left", n)
	}
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	cfg := fast()
	cfg.KeepAlive = 30 * time.Millisecond
	r := start(t, cfg)
	r.get(t, "/health")
	conn := r.idleConn(t)
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("the idle connection ended with %v, want its close", err)
	}
}

func TestAThousandStreams(t *testing.T) {
	if testing.Short() {
		t.Skip("many connections")
	}
	cfg := fast()
	cfg.Core.Blocks, cfg.Core.MaxSeqs, cfg.Core.Timing.Speed = 1<<14, 1000, 1
	r := start(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	var streams sync.WaitGroup
	defer streams.Wait()
	defer cancel()
	for range 1000 {
		streams.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/v1/completions", strings.NewReader(endless))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := r.client.Do(req)
			if err != nil {
				return // the test has seen enough and left
			}
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body) // until the context ends
		})
	}
	eventually(t, "all streams to run", func() bool { return r.Stats()[0].Running == 1000 })
	cancel()
	eventually(t, "all streams to end", func() bool { s := r.Stats()[0]; return s.Running == 0 && s.Usage == 0 })
}

// net/http does not notice a closed connection while the request's body is unread.
func TestASlowRequestEndsWithTheEngine(t *testing.T) {
	others := goleak.IgnoreCurrent()
	t.Run("an engine", func(t *testing.T) {
		r := start(t, fast())
		r.post(t, "/sim/faults", `{"slow":"1h"}`)
		before := len(r.Requests())
		go func() {
			if resp, err := r.client.Post(r.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"sim","prompt":"x"}`)); err == nil {
				resp.Body.Close()
			}
		}()
		eventually(t, "the request", func() bool { return len(r.Requests()) > before })
	})
	goleak.VerifyNone(t, others)
}
