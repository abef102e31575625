package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// A replica dies in the middle of load, and comes back. Requests that had their first byte from it break, visibly;
// every other one is answered, as if nothing had happened.
func TestAReplicaThatDiesCostsNoRequestThatHadNotBegun(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{replicas: 3, engine: func(_ int, c *enginesim.Config) { c.Core.Timing.Speed = 10 }})
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	defer transport.CloseIdleConnections()
	var whole, broken, begun atomic.Int64
	one := func(i int) error {
		streamed := i%2 == 0
		body := fmt.Sprintf(`{"model":"sim","stream":%v,"ignore_eos":true,"max_tokens":%d,"messages":[{"role":"user","content":"load %d"}]}`, streamed, 20+i%40, i)
		resp, err := transport.RoundTrip(post(t, "http://"+f.http+"/v1/chat/completions", body))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		begun.Add(1)
		text, err := io.ReadAll(resp.Body)
		switch {
		case err != nil && !streamed && len(text) > 0: // its first byte was there
			broken.Add(1)
		case err != nil || resp.StatusCode != http.StatusOK:
			return fmt.Errorf("status %d, %w: %s", resp.StatusCode, err, text)
		case streamed && strings.Contains(string(text), `"error"`):
			if !strings.HasPrefix(string(text), `data: {"id"`) {
				return fmt.Errorf("an error without a first byte: %s", text)
			}
			broken.Add(1)
		case streamed && !strings.HasSuffix(string(text), "data: [DONE]\n\n"):
			return fmt.Errorf("a stream without its end: %s", text)
		default:
			whole.Add(1)
		}
		return nil
	}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	var next atomic.Int64
	for range 24 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := one(int(next.Add(1))); err != nil {
					t.Errorf("a request was lost: %v", err)
				}
			}
		})
	}
	f.eventually("load", func() bool { return whole.Load() > 50 })
	for range 2 {
		f.engines[0].Restart(500 * time.Millisecond)
		from := whole.Load()
		f.eventually("load goes on", func() bool { return whole.Load() > from+150 })
	}
	close(stop)
	clients.Wait()
	retries := f.metric("kvpilot_router_retries_total")
	t.Logf("%d requests whole, %d broken after their first byte, %v sent again", whole.Load(), broken.Load(), retries)
	if retries == 0 && broken.Load() == 0 {
		t.Error("nothing was under way when the replica died: the test shows nothing")
	}
	f.settled()
}

// Answers that come whole have no first byte until the end: a replica that dies takes many of them with it, far more
// than the retry budget has. All are answered.
func TestAReplicaThatDiesWithAHundredAnswersUnderWayLosesNone(t *testing.T) {
	const requests = 240
	f := startFleet(t, fleetOptions{replicas: 3, args: []string{"--set", "chooser.hold_above=0s"}})
	for _, e := range f.engines { // they take requests, and answer none until all are under way
		e.SetFaults(enginesim.Faults{EngineFaults: enginesim.EngineFaults{Stall: true}})
	}
	transport := &http.Transport{MaxIdleConnsPerHost: requests}
	defer transport.CloseIdleConnections()
	var clients sync.WaitGroup
	for i := range requests {
		clients.Go(func() {
			body := fmt.Sprintf(`{"model":"sim","ignore_eos":true,"max_tokens":20,"messages":[{"role":"user","content":"work %d"}]}`, i)
			resp, err := transport.RoundTrip(post(t, "http://"+f.http+"/v1/chat/completions", body))
			if err != nil {
				t.Errorf("request %d: %v", i, err)
				return
			}
			defer resp.Body.Close()
			if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("request %d was lost: %d %v %s", i, resp.StatusCode, err, text)
			}
		})
	}
	f.eventually("all are under way", func() bool {
		return f.metric("kvpilot_load_reservations") == requests && len(f.engines[0].Requests()) > 60
	})
	f.engines[0].Restart(time.Second)
	for _, e := range f.engines {
		e.SetFaults(enginesim.Faults{})
	}
	clients.Wait()
	n := f.metric("kvpilot_router_retries_total")
	t.Logf("%v requests were sent again", n)
	if n < 55 { // the budget has 50
		t.Error("too few were under way at the replica that died: the test shows nothing")
	}
	f.settled()
}

// A replica that says when to come back is left alone until then, by everybody.
func TestRetryAfterIsHonoured(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2, args: []string{"--set", "tokenizer.enabled=false"}}) // whose call would meet the fault
	f.engines[0].SetFaults(enginesim.Faults{Where: enginesim.Where{Times: 1, Paths: []string{"/v1/chat/completions"}}, AnswerFaults: enginesim.AnswerFaults{Status: 429, RetryAfter: 60}})
	asked := func() (n int) {
		for _, r := range f.engines[0].Requests() {
			if r.Path == "/v1/chat/completions" {
				n++
			}
		}
		return n
	}
	for i := 0; asked() == 0; i++ {
		if i == 50 {
			t.Fatal("fifty requests, and none went to the first replica")
		}
		cached(t, f.post("/v1/chat/completions", conversation(fmt.Sprint("before ", i), 1, "")))
	}
	for i := range 20 {
		a := f.post("/v1/chat/completions", conversation(fmt.Sprint("after ", i), 1, ""))
		if cached(t, a); a.header.Get("X-Kvpilot-Replica") != "r1" {
			t.Errorf("request %d went to the replica that asked to be left alone", i)
		}
	}
	if n := asked(); n != 1 {
		t.Errorf("it was asked %d times, want once", n)
	}
}

// post makes a request with a JSON body.
func post(t *testing.T, url, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Error(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return req
}
