package router_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
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

// mood is how a remote replica treats requests at the moment.
type mood int

const (
	well        mood = iota
	refusing         // nobody listens
	away             // the network loses every packet
	resetting        // takes a request and closes
	unavailable      // 503 with Retry-After
	busy             // 429
	slow             // answers after seconds
	halfHead         // breaks off in the head of its answer
	halfBody         // after the head
	halfStream       // after the answer's first bytes
	moods
)

// remote is a replica behind a network that exists in memory only, so that it works in virtual time.
type remote struct {
	name string
	mood atomic.Int32
	// hung and torn are the requests that it left without an answer, or with the beginning of one.
	hung, torn sync.Map
	served     atomic.Int64
}

func (r *remote) is() mood { return mood(r.mood.Load()) }

// network connects to remotes by name.
type network struct {
	remotes map[string]*remote
	conns   sync.WaitGroup
}

// dial is upstream.Params.Dial.
func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	host, _, _ := strings.Cut(address, ":")
	r := n.remotes[host]
	switch r.is() {
	case refusing:
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	case away:
		select {
		case <-time.After(3 * time.Second):
			return nil, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	default:
	}
	near, far := net.Pipe()
	n.conns.Go(func() {
		defer far.Close()
		r.serve(far)
	})
	return near, nil
}

// RoundTrip answers probes.
func (n *network) RoundTrip(req *http.Request) (*http.Response, error) {
	switch n.remotes[req.URL.Hostname()].is() {
	case refusing:
		return nil, syscall.ECONNREFUSED
	case away:
		<-req.Context().Done()
		return nil, req.Context().Err()
	default:
	}
	body := ""
	if req.URL.Path == "/v1/models" {
		body = `{"object":"list","data":[{"id":"m","max_model_len":131072}]}`
	}
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
}

// serve answers the requests of one connection.
func (r *remote) serve(conn net.Conn) {
	in := bufio.NewReader(conn)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		id := req.Header.Get("X-Request-Id")
		work := 50 * time.Millisecond
		switch r.is() {
		case refusing, resetting:
			return
		case away:
			r.hung.Store(id, true)
			in.ReadByte()
			return
		case unavailable:
			io.WriteString(conn, "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
			continue
		case busy:
			io.WriteString(conn, "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n")
			continue
		case halfHead:
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Le")
			return
		case slow:
			work = 4 * time.Second
		default:
		}
		time.Sleep(work)
		if !r.answer(conn, id, strings.Contains(string(body), `"stream":true`)) {
			return
		}
		r.served.Add(1)
	}
}

// answer is false when the connection ends with it.
func (r *remote) answer(conn io.Writer, id string, streamed bool) bool {
	head, pieces := wholeAnswer(id, streamed)
	mood := r.is()
	if mood == halfStream {
		r.torn.Store(id, true)
	}
	if _, err := io.WriteString(conn, head); err != nil || mood == halfBody {
		return false
	}
	for i, piece := range pieces {
		if i > 0 {
			if mood == halfStream {
				return false
			}
			time.Sleep(20 * time.Millisecond)
		}
		if _, err := io.WriteString(conn, piece); err != nil {
			return false
		}
	}
	return true
}

// wholeAnswer is what a healthy replica answers to a request.
func wholeAnswer(id string, streamed bool) (head string, pieces []string) {
	kind := "application/json"
	pieces = []string{`{"answer":`, `"` + id + `"}`}
	if streamed {
		kind, pieces = "text/event-stream", []string{
			`data: {"choices":[{"index":0,"delta":{"content":"` + id + `"}}]}` + "\n\n",
			`data: {"choices":[{"index":0,"delta":{"content":" more"},"finish_reason":"stop"}]}` + "\n\n", "data: [DONE]\n\n",
		}
	}
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", kind, len(strings.Join(pieces, ""))), pieces
}

// partitioned is a router before remotes.
type partitioned struct {
	t       *testing.T
	network *network
	remotes []*remote
	router  *router.Router
	book    *load.Book
	breaker *breaker.Breaker
	asked   atomic.Int64
}

// startPartitioned makes a router before n remotes; it runs in a bubble until stop is called.
func startPartitioned(t *testing.T, n int, bounds retry.Config) (p *partitioned, stop func()) {
	t.Helper()
	p = &partitioned{t: t, network: &network{remotes: map[string]*remote{}}}
	rc := registry.DefaultConfig()
	for i := range n {
		r := &remote{name: fmt.Sprintf("r%d", i)}
		p.remotes = append(p.remotes, r)
		p.network.remotes[r.name] = r
		rc.Replicas = append(rc.Replicas, registry.Spec{ID: replica.ID(r.name), URL: "http://" + r.name + ":8000", BlockSize: 16, Blocks: 1000})
	}
	uc, tc := upstream.DefaultConfig(), tokenizer.DefaultConfig()
	uc.Retry, uc.ResponseHeaderTimeout, uc.StallTimeout = bounds, 10*time.Second, 10*time.Second
	tc.Enabled = false
	p.breaker = breaker.New(uc.Breaker)
	params := router.Params{
		Tokens: tokenizer.New(tc, tokenizer.Params{}), Upstream: upstream.New(uc, upstream.Params{Dial: p.network.dial}),
		Breaker: p.breaker, Budget: retry.NewBudget(bounds), Pins: pins.New(uc.Pins),
		Bodies: openai.NewMemory(1 << 20), Attempts: bounds.Attempts, Lease: time.Minute,
	}
	index := kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})
	p.book = load.New(load.DefaultConfig(), load.Params{})
	params.Chooser = chooser.New(chooser.DefaultConfig(), chooser.Params{
		Index: index, Book: p.book, Seed: 1, Gate: p.breaker,
	})
	hooks := wired(t, p.book, index, params.Chooser)
	hooks.Client = &http.Client{Transport: p.network}
	params.Registry = registry.New(rc, hooks)
	p.router = router.New(intake.DefaultConfig(), params)
	halt := running(t, params)
	time.Sleep(10 * time.Second) // all are found ready
	return p, func() {
		halt()
		p.network.conns.Wait()
	}
}

// ask sends one request and checks that its answer came whole or broke for a good reason.
func (p *partitioned) ask(streamed bool) (lost bool) {
	id := fmt.Sprintf("q%d", p.asked.Add(1))
	call := chat(fmt.Sprintf(`{"model":"m","stream":%v,"messages":[{"role":"user","content":%q}]}`, streamed, id))
	call.RequestID = id
	to := &client{}
	err := p.router.Serve(context.Background(), call, to)
	_, pieces := wholeAnswer(id, streamed)
	whole := strings.Join(pieces, "")
	switch got := to.body.String(); {
	case err == nil && (to.status != 200 || got != whole):
		p.t.Errorf("%s: no error and %d %q", id, to.status, got)
	case err != nil && !strings.HasPrefix(whole, got):
		p.t.Errorf("%s: %v after %q", id, err, got)
	case err == nil, p.met(id, to.status != 0):
	default:
		p.t.Logf("%s was lost: %v; begun %v", id, err, to.status != 0)
		return true
	}
	return false
}

// met reports whether the request met a replica that excuses an error: one that took it and fell silent, for
// the engine may be at work on it, or one that broke off an answer that the client has seen.
func (p *partitioned) met(id string, begun bool) bool {
	for _, r := range p.remotes {
		if _, hung := r.hung.Load(id); hung {
			return true
		}
		if _, torn := r.torn.Load(id); torn && begun {
			return true
		}
	}
	return false
}

// load has so many clients ask one request after the other for a while.
func (p *partitioned) load(clients int, during time.Duration) (lost int64) {
	var group sync.WaitGroup
	var n atomic.Int64
	end := time.Now().Add(during)
	for i := range clients {
		group.Go(func() {
			for k := 0; time.Now().Before(end); k++ {
				if p.ask((i+k)%2 == 0) {
					n.Add(1)
				}
			}
		})
	}
	group.Wait()
	return n.Load()
}

// disturb changes the moods of all remotes but the first by chance until stop is closed, and leaves them well.
func (p *partitioned) disturb(dice *rand.Rand, stop <-chan struct{}) {
	for {
		r := p.remotes[1+dice.IntN(len(p.remotes)-1)]
		r.mood.Store(int32(dice.IntN(int(moods))))
		select {
		case <-time.After(time.Duration(dice.IntN(int(2 * time.Second)))):
		case <-stop:
			for _, r := range p.remotes {
				r.mood.Store(int32(well))
			}
			return
		}
	}
}

// closes waits under load until every circuit is closed again.
func (p *partitioned) closes() {
	p.t.Helper()
	for range 60 {
		if n := p.load(12, 5*time.Second); n > 0 {
			p.t.Errorf("%d requests were lost while every replica was well", n)
		}
		open := 0
		for _, r := range p.remotes {
			if p.breaker.State(replica.ID(r.name)) != breaker.Closed {
				open++
			}
		}
		if open == 0 {
			return
		}
	}
	p.t.Error("five minutes after the last fault, circuits are not closed")
}

// Five of six replicas fail in every way that a network and an engine can, each for a while, and come back. No
// request is lost before its first byte, no booking is left, and every replica serves again afterwards.
func TestAPartitionLosesNothingThatHadNotBegun(t *testing.T) {
	for seed := range uint64(2) {
		if testing.Short() && seed > 0 {
			break
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, stop := startPartitioned(t, 6, retry.Config{Attempts: 12, Ratio: 1, MinPerSecond: 10_000})
				defer stop()
				p.underFaults(seed, 40*time.Second, 0)
			})
		})
	}
}

// With the usual budget some requests may be lost, and the rest of the promises hold.
func TestAPartitionWithTheUsualBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, stop := startPartitioned(t, 6, upstream.DefaultConfig().Retry)
		defer stop()
		p.underFaults(7, 40*time.Second, 0.02)
	})
}

// underFaults lets at most the given share of requests be lost.
func (p *partitioned) underFaults(seed uint64, during time.Duration, share float64) {
	p.t.Helper()
	calm, disturbed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(disturbed)
		p.disturb(rand.New(rand.NewPCG(seed, 3)), calm)
	}()
	lost := p.load(12, during)
	close(calm)
	<-disturbed
	if n := p.asked.Load(); float64(lost) > share*float64(n) || n < 1000 {
		p.t.Errorf("%d of %d requests were lost, want at most %v of many", lost, n, share)
	}
	if n := p.book.Live(); n != 0 {
		p.t.Errorf("%d reservations are left after the faults", n)
	}
	p.closes()
	if n := p.book.Live(); n != 0 {
		p.t.Errorf("%d reservations are left", n)
	}
	for _, r := range p.remotes {
		before := r.served.Load()
		p.load(12, time.Second)
		if r.served.Load() == before {
			p.t.Errorf("%s serves nothing any more", r.name)
		}
	}
	p.t.Logf("%d requests, %d lost during the faults", p.asked.Load(), lost)
}
