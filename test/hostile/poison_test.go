package hostile

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/test/stack"
)

// askers are three tenants that ask all the time.
type askers struct {
	t      *testing.T
	s      *stack.Stack
	asked  atomic.Int64
	failed atomic.Int64
	end    context.CancelFunc
	wait   sync.WaitGroup

	mu   sync.Mutex
	took []time.Duration // guarded by mu
}

var honestTenants = []string{"ann", "ben", "cleo"}

func keyOf(tenant string) string { return tenant + "-key-000000001" }

// attacked starts a router before three replicas with four tenants; keyless starts it without keys.
func attacked(t *testing.T, keyless bool) *stack.Stack {
	t.Helper()
	return stack.Start(t, stack.Options{Replicas: 3, Configure: func(c *config.Config) {
		c.Router.UnknownRoutes = true
		if keyless {
			return
		}
		for _, tenant := range append([]string{"mallory"}, honestTenants...) {
			c.API.Keys = append(c.API.Keys, grpcapi.Key{Name: tenant, Key: secret.New(keyOf(tenant)), Roles: []string{"infer", "route", "forward"}})
		}
	}})
}

// begin makes each of the honest tenants ask that often, until stop.
func begin(t *testing.T, s *stack.Stack, every time.Duration) *askers {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	h := &askers{t: t, s: s, end: cancel}
	if r := askAs(t, s, honestTenants[0], good); r.status != http.StatusOK {
		t.Fatalf("before the attack: %d %s", r.status, r.body)
	}
	for _, tenant := range honestTenants {
		h.wait.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for i := 0; ; i++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				body := fmt.Sprintf(`{"model":"sim","messages":[{"role":"user","content":"%s asks %d"}],"max_tokens":2}`, tenant, i)
				h.asked.Add(1)
				began := time.Now()
				r := askAs(t, s, tenant, body)
				h.mu.Lock()
				h.took = append(h.took, time.Since(began))
				h.mu.Unlock()
				if r.status != http.StatusOK {
					h.failed.Add(1)
					t.Errorf("%s gets %d %s", tenant, r.status, r.body)
				}
			}
		})
	}
	return h
}

// stop ends the honest tenants and checks that each got all answers.
func (h *askers) stop() {
	h.t.Helper()
	h.end()
	h.wait.Wait()
	if h.asked.Load() == 0 || h.failed.Load() > 0 {
		h.t.Errorf("%d of %d honest requests failed", h.failed.Load(), h.asked.Load())
	}
	slices.Sort(h.took)
	h.t.Logf("%d honest requests: median %v, p99 %v", len(h.took), h.took[len(h.took)/2], h.took[len(h.took)*99/100])
}

func askAs(t *testing.T, s *stack.Stack, tenant, body string) reply {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, "http://"+s.HTTP+"/v1/chat/completions", strings.NewReader(body)) // not the test's context: it ends before the answers
	if err != nil {
		t.Error(err)
		return reply{}
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+keyOf(tenant))
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return reply{}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return reply{status: resp.StatusCode, body: string(text)}
}

// poison gives all replicas a fault for requests with the word poison on the paths.
func poison(t *testing.T, s *stack.Stack, status int, paths ...string) {
	t.Helper()
	for _, url := range s.Replicas {
		body := fmt.Sprintf(`{"poison":"poison","status":%d,"paths":["%s"]}`, status, strings.Join(paths, `","`))
		resp, err := http.Post(url+"/sim/faults", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("the fault is not taken: %d", resp.StatusCode)
		}
	}
}

// metric sums the series of a metric whose text has all of labels.
func metric(t *testing.T, s *stack.Stack, name string, labels ...string) (sum float64) {
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
	found := false
lines:
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(line, label) {
				continue lines
			}
		}
		fields := strings.Fields(line)
		n, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil || math.IsNaN(n) {
			t.Fatalf("%q: %v", line, err)
		}
		found = true
		sum += n
	}
	if !found {
		t.Fatalf("no series of %s with %v", name, labels)
	}
	return sum
}

// attackFor calls attack at a rate for a while, side by side.
func attackFor(d time.Duration, perSecond int, attack func(i int)) {
	var all sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for i := range int(d.Seconds() * float64(perSecond)) {
		<-tick.C
		all.Go(func() { attack(i) })
	}
	all.Wait()
}

// A prompt at which every engine fails is its sender's: nobody else gets an error for it, and each costs two attempts at most.
func TestAPoisonedPromptHurtsItsSenderOnly(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for attacks of seven seconds")
	}
	stack.Aside(t)
	for name, c := range map[string]struct {
		status, rate, most int
		keyless            bool
		prompt             string
	}{
		"500 at 20/s":                  {500, 20, 2, false, "poison"},
		"500 at 60/s":                  {500, 60, 2, false, "poison"},
		"500 at 60/s, varied":          {500, 60, 2, false, "poison %d"},
		"500 at 60/s, without tenants": {500, 60, 2, true, "poison %d"},
		"503 at 60/s, varied":          {503, 60, 3, false, "poison %d"},
		"502 at 60/s":                  {502, 60, 2, false, "poison"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := attacked(t, c.keyless)
			poison(t, s, c.status, "/v1/chat/completions")
			calm := begin(t, s, 100*time.Millisecond)
			time.Sleep(2 * time.Second) // undisturbed, for the log
			calm.stop()
			h := begin(t, s, 100*time.Millisecond)
			var sent atomic.Int64
			attack := func(i int) {
				prompt := strings.ReplaceAll(c.prompt, "%d", strconv.Itoa(i))
				sent.Add(1)
				if r := askAs(t, s, "mallory", `{"model":"sim","messages":[{"role":"user","content":"`+prompt+`"}],"max_tokens":2}`); r.status < 500 {
					t.Errorf("the poison gets %d %s", r.status, r.body)
				}
			}
			for i := range 10 {
				attack(1_000_000 + i)
			}
			outcome := map[int]string{500: "engine_error", 502: "gateway", 503: "unavailable"}[c.status]
			before := metric(t, s, "kvpilot_upstream_attempts_total", `outcome="`+outcome+`"`)
			sent.Store(0)
			attackFor(5*time.Second, c.rate, attack)
			h.stop()
			tried := metric(t, s, "kvpilot_upstream_attempts_total", `outcome="`+outcome+`"`) - before
			t.Logf("%d poisons, %.0f attempts; %d honest requests", sent.Load(), tried, h.asked.Load())
			if tried > float64(c.most)*float64(sent.Load()) {
				t.Errorf("%d poisons cost %.0f attempts", sent.Load(), tried)
			}
			if n := metric(t, s, "kvpilot_upstream_breaker_opened_total"); n != 0 {
				t.Errorf("breakers opened %.0f times", n)
			}
			if n := metric(t, s, "kvpilot_router_faults_total", `outcome="`+outcome+`"`, `cause="request"`) + metric(t, s, "kvpilot_router_faults_total", `outcome="`+outcome+`"`, `cause="tenant"`); n < float64(sent.Load())/2 {
				t.Errorf("%.0f of %d faults are known as the request's or its tenant's", n, sent.Load())
			}
		})
	}
}

// A prompt that a tokenizer fails takes no token ids from others.
func TestAPoisonedTokenizationHurtsItsSenderOnly(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for attacks of twelve seconds")
	}
	stack.Aside(t)
	for name, prompt := range map[string]string{"the same": "poison", "varied": "poison %d"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := attacked(t, false)
			poison(t, s, 500, "/tokenize", "/v1/chat/completions/render")
			h := begin(t, s, time.Second)
			attackFor(12*time.Second, 5, func(i int) {
				text := strings.ReplaceAll(prompt, "%d", strconv.Itoa(i))
				if r := askAs(t, s, "mallory", `{"model":"sim","messages":[{"role":"user","content":"`+text+`"}],"max_tokens":2}`); r.status != http.StatusOK {
					t.Errorf("the poison gets %d %s, its tokens matter to the router alone", r.status, r.body)
				}
			})
			h.stop()
			if n := metric(t, s, "kvpilot_tokenizer_breaker_opened_total"); n != 0 {
				t.Errorf("tokenizers were suspended %.0f times", n)
			}
			without := metric(t, s, "kvpilot_tokenizer_duration_seconds_count", `source="none"`)
			t.Logf("%.0f prompts have no token ids, of 60 poisons and %d others", without, h.asked.Load())
			if without > 60 {
				t.Errorf("%.0f prompts have no token ids, 60 are the attacker's", without)
			}
			if n := metric(t, s, "kvpilot_tokenizer_faults_total", `cause="request"`); n == 0 {
				t.Error("no fault is known as the question's")
			}
		})
	}
}

// A request that HTTP/1.1 cannot carry gets 400 and says nothing about replicas.
func TestWhatCannotBeSentHurtsItsSenderOnly(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for attacks of seconds")
	}
	stack.Aside(t)
	s := attacked(t, false)
	h := begin(t, s, 100*time.Millisecond)
	attackFor(2*time.Second, 30, func(int) {
		if got := spaced(t, s.HTTP, "/v1/chat/completions?a=b c"); got != "400" {
			t.Errorf("a space in the query gets %s", got)
		}
	})
	conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+keyOf("mallory"))
	for _, in := range []*kvpilotv1.ForwardRequest{
		{Method: "POST", Path: "/v1/chat/completions", Query: "a=b c", Body: []byte(good), ContentType: "application/json"},
		{Method: "POST", Path: "/v1/chat/completions", Query: "a=b\r\nX-Injected: 1", Body: []byte(good), ContentType: "application/json"},
	} {
		for range 30 {
			stream, err := kvpilotv1.NewInferenceServiceClient(conn).Forward(ctx, in)
			if err == nil {
				_, err = stream.Recv()
			}
			if status.Code(err) != codes.InvalidArgument {
				t.Fatalf("Forward with query %q: %v, want INVALID_ARGUMENT", in.GetQuery(), err)
			}
		}
	}
	h.stop()
	if n := metric(t, s, "kvpilot_upstream_breaker_opened_total"); n != 0 {
		t.Errorf("breakers opened %.0f times", n)
	}
	if n := metric(t, s, "kvpilot_router_faults_total", `cause="replica"`); n != 0 {
		t.Errorf("%.0f faults count against replicas", n)
	}
}

// spaced sends a request of HTTP/2 with a path as it is, and returns the status.
func spaced(t *testing.T, address, path string) string {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	io.WriteString(c, http2.ClientPreface)
	f := http2.NewFramer(c, c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var head strings.Builder
	enc := hpack.NewEncoder(&head)
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":authority", address}, {":path", path},
		{"content-type", "application/json"}, {"authorization", "Bearer " + keyOf("mallory")},
	} {
		enc.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	for _, err := range []error{
		f.WriteSettings(),
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(head.String()), EndHeaders: true}),
		f.WriteData(1, true, []byte(good)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return err.Error()
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			return frame.PseudoValue("status")
		case *http2.RSTStreamFrame:
			return frame.ErrCode.String()
		case *http2.GoAwayFrame:
			return frame.ErrCode.String()
		}
	}
}

// A replica whose engine fails every request is left, and no caller notices.
func TestABrokenReplicaCostsNoRequest(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for seconds of load")
	}
	stack.Aside(t)
	s := attacked(t, false)
	resp, err := http.Post(s.Replicas[1]+"/sim/faults", "application/json", strings.NewReader(`{"status":500,"paths":["/v1/chat/completions"]}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	h := begin(t, s, 100*time.Millisecond)
	time.Sleep(4 * time.Second) // real sockets
	h.stop()
	if n := metric(t, s, "kvpilot_upstream_breaker_opened_total", `cause="replica"`); n < 1 {
		t.Errorf("its breaker opened %.0f times", n)
	}
}
