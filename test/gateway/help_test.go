package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/edge/extproc"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
}

// start starts a router with an endpoint picker in front of simulated replicas.
func start(t *testing.T, replicas int, change ...func(*config.Config)) *stack.Stack {
	t.Helper()
	return stack.Start(t, stack.Options{Replicas: replicas, Configure: configure(change...)})
}

func startSlow(t *testing.T, replicas int, change ...func(*config.Config)) *stack.Stack {
	t.Helper()
	return stack.Start(t, stack.Options{Replicas: replicas, Configure: configure(change...), Engine: func(c *enginesim.Config) { c.Core.Timing.Speed = 1 }})
}

func configure(change ...func(*config.Config)) func(*config.Config) {
	return func(c *config.Config) {
		c.EPP.Listen, c.EPP.TLS = "127.0.0.1:0", extproc.TLSOff
		for _, f := range change {
			f(c)
		}
	}
}

const chat = `{"model":"sim","messages":[{"role":"user","content":"%s"}],"max_tokens":5,"stream":%v}`

func ask(text string, stream bool) sent {
	return sent{path: "/v1/chat/completions", body: fmt.Sprintf(chat, text, stream)}
}

// long is a request with an answer that lasts until its client leaves.
func long() sent {
	return sent{path: "/v1/chat/completions", body: `{"model":"sim","messages":[{"role":"user","content":"a long story"}],"max_tokens":2000,"ignore_eos":true,"stream":true}`}
}

// metric sums the series of a metric with all of the labels.
func metric(t testing.TB, s *stack.Stack, name string, labels ...string) float64 {
	t.Helper()
	resp, err := http.Get("http://" + s.Admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
lines:
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(rest, label) {
				continue lines
			}
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// eventually waits for what must become true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in a minute: %s", what)
		}
	}
}

// settled waits until nothing is booked, in progress or held.
func settled(t testing.TB, s *stack.Stack) {
	t.Helper()
	for _, name := range []string{"kvpilot_load_reservations", "kvpilot_router_requests_in_flight", "kvpilot_epp_streams"} {
		eventually(t, name+" is 0", func() bool { return metric(t, s, name) == 0 })
	}
}

// faults makes a replica fail.
func faults(t testing.TB, replica, faults string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, replica+"/sim/faults", strings.NewReader(faults))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode >= 300 {
		t.Fatalf("faults: %d", resp.StatusCode)
	}
}

// endpoint is a replica's address as gateways have it.
func endpoint(replica string) string { return strings.TrimPrefix(replica, "http://") }

// post sends a request without the picker, and returns the answer's headers.
func post(t testing.TB, url, body string) http.Header {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d, %v", url, resp.StatusCode, err)
	}
	return resp.Header
}

// rankState is what a simulated replica says of a rank.
type rankState struct {
	Running   float64 `json:"running"`
	Waiting   float64 `json:"waiting"`
	NextEvent float64 `json:"next_event"`
}

// states are those of all ranks.
func states(t testing.TB, s *stack.Stack) (all []rankState) {
	t.Helper()
	for _, at := range s.Replicas {
		resp, err := http.Get(at + "/sim/state")
		if err != nil {
			t.Fatal(err)
		}
		var state struct {
			Ranks []rankState `json:"ranks"`
		}
		err = json.NewDecoder(resp.Body).Decode(&state)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, state.Ranks...)
	}
	return all
}

// published is how many batches of events the replicas have sent.
func published(t testing.TB, s *stack.Stack) (n float64) {
	t.Helper()
	for _, r := range states(t, s) {
		n += r.NextEvent
	}
	return n
}

// holding makes requests wait in the router as soon as a replica has work.
func holding(c *config.Config) { c.Chooser.HoldAbove = time.Millisecond }

// occupy books a long prompt that no replica works on, until it is freed. Its tokens are new ones, else they would pass for cached.
func occupy(t testing.TB, s *stack.Stack, first int) (free func()) {
	t.Helper()
	call := func(path, body string) string {
		resp, err := http.Post("http://"+s.HTTP+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s %v", path, resp.StatusCode, text, err)
		}
		return string(text)
	}
	_, rest, _ := strings.Cut(call("/kvpilot/v1/choose", `{"model":"sim","lease":"3600s","reports":"REPORTS_ALL","token_ids":{"ids":[`+strings.Repeat(strconv.Itoa(first)+",", 120_000)+`7]}}`), `"reservation_id":"`)
	booking, _, _ := strings.Cut(rest, `"`)
	return func() {
		call("/kvpilot/v1/reservations/"+booking+":report", `{"release":{"reason":"RELEASE_REASON_COMPLETED"}}`)
	}
}
