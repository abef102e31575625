package router_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/liveness"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/pins"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// TestMain lets more tests run at once than there are processors: they wait more than they compute.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8")
	goleak.VerifyTestMain(m)
}

// engine is a replica whose answers a test writes. Its n-th request meets script[n], the last of
// which goes on for ever.
type engine struct {
	srv *httptest.Server

	mu       sync.Mutex
	script   []http.HandlerFunc // guarded by mu
	tokenize http.HandlerFunc   // guarded by mu
	pauses   http.HandlerFunc   // guarded by mu: answers questions about pauses; nil: there is no such route
	got      [][]byte           // guarded by mu: bodies of requests that were read whole
	paths    []string           // guarded by mu
	left     int                // guarded by mu: requests that were given up by the router
	// questions counts calls of /tokenize.
	questions int // guarded by mu
	// says is the text of any ids.
	says    string // guarded by mu
	version string
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/health":
		return
	case "/version":
		io.WriteString(w, `{"version":"`+e.version+`"}`)
		return
	case "/v1/models":
		io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"vllm","root":"m","parent":null,"max_model_len":131072}]}`)
		return
	case "/tokenize":
		e.mu.Lock()
		answer := e.tokenize
		e.questions++
		e.mu.Unlock()
		if answer == nil {
			answer = text(200, `{"count":4,"max_model_len":131072,"tokens":[1,2,3,4]}`)
		}
		answer(w, r)
		return
	case "/is_paused", "/is_sleeping", "/metrics":
		e.mu.Lock()
		answer := e.pauses
		e.mu.Unlock()
		if answer == nil {
			answer = http.NotFound
		}
		answer(w, r)
		return
	case "/detokenize":
		e.mu.Lock()
		says := e.says
		e.mu.Unlock()
		text(200, `{"prompt":"`+says+`"}`)(w, r)
		return
	}
	e.mu.Lock()
	step := e.script[0]
	if len(e.script) > 1 {
		e.script = e.script[1:]
	}
	e.paths = append(e.paths, r.Method+" "+r.URL.RequestURI())
	e.mu.Unlock()
	step(w, r)
	if r.Context().Err() != nil {
		e.mu.Lock()
		e.left++
		e.mu.Unlock()
	}
}

// read keeps the request's body before the step.
func (e *engine) read(then http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			e.mu.Lock()
			e.got = append(e.got, body)
			e.mu.Unlock()
		}
		then(w, r)
	}
}

// tokenizes sets what /tokenize does.
func (e *engine) tokenizes(step http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tokenize = step
}

func (e *engine) asked() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.questions
}

// does sets what the coming requests meet.
func (e *engine) does(steps ...http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.script = steps
}

// bodies are those that were read whole.
func (e *engine) bodies() [][]byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.got
}

func (e *engine) requests() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.paths)
}

func (e *engine) givenUp() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.left
}

// text is a step that answers at once.
func text(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// silent is a step that says nothing until the router gives up.
func silent(_ http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// streaming is a step that sends pieces of a stream and then does what comes last.
func streaming(pieces []string, last http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		for _, p := range pieces {
			io.WriteString(w, p)
			w.(http.Flusher).Flush()
		}
		if last != nil {
			last(w, r)
		}
	}
}

// cut is a step that breaks the connection.
func cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// fleet is a router before engines.
type fleet struct {
	t       testing.TB
	router  *router.Router
	params  router.Params
	book    *load.Book
	index   *kvindex.Index
	chooser *chooser.Chooser
	engines []*engine
	left    sync.Map // IDs of replicas whose requests are to move

	mu       sync.Mutex
	outcomes []decision.Outcome // guarded by mu
}

// Decision implements booking.Record.
func (f *fleet) Decision(*decision.Decision) {}

// Outcome implements booking.Record.
func (f *fleet) Outcome(o decision.Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.outcomes = append(f.outcomes, o)
}

// Vitals implements watch.Engines.
func (f *fleet) Vitals(slot replica.Slot, _ time.Time) liveness.Vitals {
	of, _, ok := f.params.Registry.Snapshot().BySlot(slot)
	if !ok {
		return liveness.Vitals{}
	}
	_, left := f.left.Load(of.ID)
	return liveness.Vitals{View: of, Leaving: left}
}

// Ask implements watch.Engines.
func (*fleet) Ask(replica.Slot) {}

// decide is a decider.
type decide func(context.Context, *chooser.Request) (*chooser.Choice, error)

func (d decide) Choose(ctx context.Context, req *chooser.Request) (*chooser.Choice, error) {
	return d(ctx, req)
}

// start makes a router before n engines that all answer "ok", and waits until it sees them.
func start(t testing.TB, n int, change func(*router.Params, *chooser.Config, *registry.Config)) *fleet {
	t.Helper()
	return startVersion(t, n, "0.17.0", change)
}

// startVersion is start with engines of a version.
func startVersion(t testing.TB, n int, version string, change func(*router.Params, *chooser.Config, *registry.Config)) *fleet {
	t.Helper()
	f := &fleet{t: t}
	rc := registry.DefaultConfig()
	rc.Probe.Interval, rc.Probe.Up = 50*time.Millisecond, 1
	for i := range n {
		e := &engine{version: version}
		e.script = []http.HandlerFunc{e.read(text(200, `{"ok":true}`))}
		e.srv = httptest.NewServer(e)
		t.Cleanup(e.srv.Close)
		f.engines = append(f.engines, e)
		rc.Replicas = append(rc.Replicas, registry.Spec{ID: replica.ID(fmt.Sprintf("r%d", i)), URL: e.srv.URL, BlockSize: 16, Blocks: 1000})
	}
	uc, cc := upstream.DefaultConfig(), chooser.DefaultConfig()
	p := router.Params{
		Tokens: tokenizer.New(tokenizer.DefaultConfig(), tokenizer.Params{}), Upstream: upstream.New(uc, upstream.Params{}),
		Breaker: breaker.New(uc.Breaker), Budget: retry.NewBudget(uc.Retry), Pins: pins.New(uc.Pins),
		Bodies: openai.NewMemory(1 << 20), Attempts: 3, Lease: time.Minute,
	}
	cc.Stall.After = 0
	if change != nil {
		change(&p, &cc, &rc)
	}
	index := kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})
	f.index = index
	f.book = load.New(load.DefaultConfig(), load.Params{})
	p.Chooser = chooser.New(cc, chooser.Params{Index: index, Book: f.book, Seed: 1, Gate: p.Breaker, Record: f, Engines: f})
	f.chooser = p.Chooser
	p.Registry = registry.New(rc, wired(t, f.book, index, p.Chooser))
	f.params = p
	f.router = router.New(intake.DefaultConfig(), p)
	t.Cleanup(running(t, p))
	f.eventually("every replica is ready", func() bool {
		ready := 0
		for _, r := range p.Registry.Snapshot().Replicas {
			if r.State == replica.StateReady && len(r.Models) > 0 {
				ready++
			}
		}
		return ready >= n
	})
	return f
}

// wired has the parts of a router know the ranks that a registry finds.
func wired(t testing.TB, book *load.Book, index *kvindex.Index, c *chooser.Chooser) registry.Params {
	return registry.Params{Observer: &wiring{t, book, index, c}}
}

type wiring struct {
	t       testing.TB
	book    *load.Book
	index   *kvindex.Index
	chooser *chooser.Chooser
}

func (w *wiring) RankAdded(slot replica.Slot, r *replica.Replica, rank int) {
	w.book.AddRank(slot)
	w.chooser.AddRank(slot, r, rank)
	if err := w.index.AddRank(slot, kvindex.RankInfo{BlockSize: 16, Capacity: 1000}); err != nil {
		w.t.Error(err)
	}
	w.index.SetState(slot, kvblock.FeedNone)
}

func (*wiring) RankRemoved(replica.Slot)                     {}
func (*wiring) ReplicaRestarted(*replica.Replica, time.Time) {}
func (w *wiring) FleetChanged(*registry.Snapshot)            { w.chooser.Changed() }

// running starts what runs beside a router; stop ends it.
func running(t testing.TB, p router.Params) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, run := range []func(context.Context) error{p.Registry.Run, p.Tokens.Run, p.Upstream.Run, p.Chooser.Run} {
		all.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("Run() = %v", err)
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// script gives every engine the same steps.
func (f *fleet) script(steps ...http.HandlerFunc) {
	for _, e := range f.engines {
		e.does(steps...)
	}
}

// requests counts what all engines have got.
func (f *fleet) requests() int {
	n := 0
	for _, e := range f.engines {
		n += e.requests()
	}
	return n
}

// ends lists how the decisions ended, in order.
func (f *fleet) ends() []decision.End {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []decision.End
	for _, o := range f.outcomes {
		list = append(list, o.End)
	}
	return list
}

// eventually polls for what real sockets bring about.
func (f *fleet) eventually(what string, done func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// settled checks that nothing is booked any more.
func (f *fleet) settled() {
	f.t.Helper()
	if n := f.book.Live(); n != 0 {
		f.t.Errorf("%d reservations are left", n)
	}
}

// client is a Sink that keeps the answer.
type client struct {
	status  int
	header  http.Header
	body    bytes.Buffer
	onWrite func(p []byte) error
}

func (c *client) Begin(status int, header http.Header) error {
	if c.status != 0 {
		return errors.New("begun twice")
	}
	c.status, c.header = status, header
	return nil
}

func (c *client) Write(p []byte) error {
	c.body.Write(p)
	if c.onWrite != nil {
		return c.onWrite(p)
	}
	return nil
}

// chat is a call with a small chat body.
func chat(body string) *intake.Call {
	if body == "" {
		body = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	}
	return &intake.Call{Route: openai.RouteChat, Method: http.MethodPost, Path: "/v1/chat/completions", Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte(body), RequestID: "req-1"}
}

// reasonOf is the public reason of an error, ReasonUnspecified for none.
func reasonOf(err error) apierror.Reason {
	if e := apierror.From(err); e != nil {
		return e.Reason
	}
	return apierror.Reason(0)
}
