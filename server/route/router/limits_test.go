package router_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// account is a limiter that remembers how its grants are settled.
type account struct {
	*quota.Limiter
	mu       sync.Mutex
	admitted map[*quota.Grant]bool        // guarded by mu
	settled  map[*quota.Grant]int         // guarded by mu
	charges  map[*quota.Grant]quota.Usage // guarded by mu
	asks     map[*quota.Grant][]quota.Ask // guarded by mu
}

func newAccount(t *testing.T, c quota.Config) *account {
	t.Helper()
	must(t, c.Validate())
	return &account{Limiter: quota.New(c, quota.Params{}), admitted: map[*quota.Grant]bool{}, settled: map[*quota.Grant]int{}, charges: map[*quota.Grant]quota.Usage{}, asks: map[*quota.Grant][]quota.Ask{}}
}

func (a *account) Admit(g *quota.Grant, tenant string) *quota.Refusal {
	refusal := a.Limiter.Admit(g, tenant)
	a.mu.Lock()
	defer a.mu.Unlock()
	if refusal == nil {
		a.admitted[g] = true
	}
	return refusal
}

func (a *account) Book(g *quota.Grant, ask quota.Ask) *quota.Refusal {
	a.mu.Lock()
	a.asks[g] = append(a.asks[g], ask)
	a.mu.Unlock()
	return a.Limiter.Book(g, ask)
}

func (a *account) Settle(g *quota.Grant, u quota.Usage) {
	a.mu.Lock()
	a.settled[g]++
	if a.settled[g] == 1 {
		a.charges[g] = u
	}
	a.mu.Unlock()
	a.Limiter.Settle(g, u)
}

// check tells of grants that were not settled exactly once, and returns how many there were.
func (a *account) check(t *testing.T) int {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for g := range a.admitted {
		if n := a.settled[g]; n != 1 {
			t.Errorf("a grant is settled %d times", n)
		}
		if n := len(a.asks[g]); n > 1 {
			t.Errorf("a request is booked %d times", n)
		}
	}
	return len(a.admitted)
}

// last is how the only grant was settled.
func (a *account) last(t *testing.T) quota.Usage {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.charges) != 1 {
		t.Errorf("%d grants are settled, want 1", len(a.charges))
	}
	for _, u := range a.charges {
		return u
	}
	return quota.Usage{}
}

func plenty() quota.Config {
	return quota.Config{quota.Default: {RequestsPerSecond: 1e6, TokensPerMinute: 1 << 30, InFlight: 1 << 20, ReservedTokens: 1 << 30}}
}

func TestHowEachEndIsCharged(t *testing.T) {
	t.Parallel()
	usage := `data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":12}}` + "\n\ndata: [DONE]\n\n"
	for name, c := range map[string]struct {
		call   *intake.Call
		script []http.HandlerFunc
		leave  bool
		want   quota.Usage
	}{
		"usage":              {chat(""), []http.HandlerFunc{text(200, `{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}`)}, false, quota.Usage{Charge: quota.ChargeUsage, Prompt: 3, Output: 5}},
		"usage of a stream":  {streamed(""), []http.HandlerFunc{streaming([]string{piece(0, "a", "stop"), usage}, nil)}, false, quota.Usage{Charge: quota.ChargeUsage, Prompt: 4, Output: 12, Unbelieved: 26}},
		"huge usage":         {chat(""), []http.HandlerFunc{text(200, `{"choices":[],"usage":{"prompt_tokens":100000000000,"completion_tokens":90000000000}}`)}, false, quota.Usage{Charge: quota.ChargeUsage, Prompt: 4, Output: 85, Unbelieved: 189999999911}},
		"more than asked":    {chat(`{"model":"m","max_tokens":7,"n":2,"messages":[]}`), []http.HandlerFunc{text(200, `{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":70}}`)}, false, quota.Usage{Charge: quota.ChargeUsage, Prompt: 4, Output: 14, Unbelieved: 56}},
		"no prompt tokens":   {chat(""), []http.HandlerFunc{text(200, `{"choices":[],"usage":{"completion_tokens":5}}`)}, false, quota.Usage{Charge: quota.ChargeUsage, Prompt: 4, Output: 5}},
		"huge usage, no ids": {&intake.Call{Route: openai.RouteEmbeddings, Method: "POST", Path: "/v1/embeddings", Header: http.Header{}, Body: []byte(`{"model":"m","input":"x"}`)}, []http.HandlerFunc{text(200, `{"data":[],"usage":{"prompt_tokens":100000000000}}`)}, false, quota.Usage{Charge: quota.ChargeUsage, Prompt: 1049, Output: -1, Unbelieved: 100000000000 - 1049}},
		"stream without":     {streamed(""), []http.HandlerFunc{streaming([]string{piece(0, "", ""), piece(0, "a", ""), piece(0, "b", "stop"), "data: [DONE]\n\n"}, nil)}, false, quota.Usage{Charge: quota.ChargeUsage, Prompt: 4, Output: 2}},
		"answer without":     {chat(""), []http.HandlerFunc{text(200, `{"ok":true}`)}, false, quota.Usage{Charge: quota.ChargeBooked}},
		"engine's 400":       {chat(""), []http.HandlerFunc{text(400, `{"error":{"message":"x"}}`)}, false, quota.Usage{}},
		"engine's 500":       {chat(""), []http.HandlerFunc{text(500, `{}`)}, false, quota.Usage{}},
		"cut at once":        {chat(""), []http.HandlerFunc{cut}, false, quota.Usage{}},
		"cut in a stream":    {streamed(""), []http.HandlerFunc{streaming([]string{piece(0, "", ""), piece(0, "a", "")}, cut)}, false, quota.Usage{Charge: quota.ChargeUsage, Prompt: 4, Output: 1}},
		"client leaves":      {chat(""), []http.HandlerFunc{silent}, true, quota.Usage{Charge: quota.ChargeUsage, Prompt: 4}},
		"no such model":      {chat(`{"model":"none","messages":[]}`), []http.HandlerFunc{silent}, false, quota.Usage{}},
		"no JSON":            {chat(`{"model":`), []http.HandlerFunc{silent}, false, quota.Usage{}},
		"embeddings":         {&intake.Call{Route: openai.RouteEmbeddings, Method: "POST", Path: "/v1/embeddings", Header: http.Header{}, Body: []byte(`{"model":"m","input":"x"}`)}, []http.HandlerFunc{text(200, `{"data":[],"usage":{"prompt_tokens":7,"total_tokens":7}}`)}, false, quota.Usage{Charge: quota.ChargeUsage, Prompt: 7, Output: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAccount(t, plenty())
			f := start(t, 1, func(p *router.Params, _ *chooser.Config, _ *registry.Config) { p.Limits = a })
			f.script(c.script...)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.leave {
				go func() {
					f.eventually("the engine has it", func() bool { return f.requests() == 1 })
					cancel()
				}()
			}
			_ = f.router.Serve(ctx, c.call, &client{}) // some fail, as they should
			a.check(t)
			got := a.last(t)
			if got.Output < 0 {
				got.Output = -1
			}
			if got != c.want {
				t.Errorf("settled by %+v, want %+v", got, c.want)
			}
			f.settled()
		})
	}
}

// Item 9: requests that end in every way, at random, leave each grant settled once: engines that refuse, break off,
// stall and answer, clients that leave at any moment and break off the answer, a handler that panics, reservations
// that are finished, expire or are asked for twice.
func TestRandomLivesAreSettledOnce(t *testing.T) {
	t.Parallel()
	a := newAccount(t, quota.Config{quota.Default: {RequestsPerSecond: 2000, TokensPerMinute: 600000, InFlight: 30, ReservedTokens: 3000}})
	f := start(t, 3, func(p *router.Params, c *chooser.Config, _ *registry.Config) {
		p.Limits = a
		p.Lease = 150 * time.Millisecond
		c.MaxRequestsPerRank = 6
	})
	ctx, stop := context.WithCancel(t.Context())
	var sweeping sync.WaitGroup
	sweeping.Go(func() { _ = f.book.Run(ctx) })
	defer func() { stop(); sweeping.Wait() }()
	usage := `data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":12}}` + "\n\ndata: [DONE]\n\n"
	steps := []http.HandlerFunc{
		text(200, `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5}}`), text(400, `{}`), text(503, `{}`, "Retry-After", "1"), cut,
		streaming([]string{piece(0, "a", ""), usage}, nil), streaming([]string{piece(0, "a", "")}, cut),
		func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-time.After(40 * time.Millisecond):
			}
			text(200, `{"ok":true}`)(w, r)
		},
	}
	var dice sync.Mutex
	r := rand.New(rand.NewPCG(4, 4))
	pick := func(n int) int { dice.Lock(); defer dice.Unlock(); return r.IntN(n) }
	f.script(func(w http.ResponseWriter, req *http.Request) { steps[pick(len(steps))](w, req) })
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			for range 25 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+pick(60))*time.Millisecond)
				tenant := "t" + strconv.Itoa(pick(3))
				if pick(3) == 0 {
					booking := intake.BookNothing
					if pick(4) > 0 {
						booking = intake.Reserve
					}
					q := &intake.Question{Model: "m", ExpectedOutput: pick(200), Caller: intake.Caller{Tenant: tenant}, Input: intake.Input{Text: strings.Repeat("text ", 1+pick(50))}, Terms: intake.Terms{Booking: booking}}
					if pick(2) == 0 {
						q.RequestID = "q" + strconv.Itoa(pick(5))
						if q.Text = q.RequestID; q.Booking == intake.Reserve {
							q.Booking = intake.ReserveOnce
						}
					}
					answer, err := f.router.Choose(ctx, q)
					if err == nil && q.Booking.Reserves() && pick(3) > 0 {
						f.chooser.Finish(load.Key{Tenant: tenant, ID: answer.Decision.ID, Attempt: uint32(answer.Decision.Attempt)}, chooser.Result{End: decision.End(1 + pick(4)), PromptTokens: pick(20) - 1, OutputTokens: pick(20) - 1, CachedTokens: -1})
					}
				} else {
					call := chat("")
					if pick(2) == 0 {
						call = streamed("")
					}
					call.Tenant = tenant
					sink := &client{}
					if pick(4) == 0 {
						sink.onWrite = func([]byte) error { return fmt.Errorf("gone") }
					}
					panics := pick(20) == 0
					if panics {
						sink.onWrite = func([]byte) error { panic("a bug") }
					}
					func() {
						defer func() {
							if v := recover(); v != nil && !panics {
								t.Errorf("panic: %v", v)
							}
						}()
						_ = f.router.Serve(ctx, call, sink) // most fail, as they should
					}()
				}
				cancel()
			}
		})
	}
	all.Wait()
	f.eventually("every lease has ended", func() bool { return f.book.Live() == 0 })
	f.eventually("every grant is settled", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		for g := range a.admitted {
			if a.settled[g] == 0 {
				return false
			}
		}
		return true
	})
	if n := a.check(t); n < 200 {
		t.Errorf("only %d requests were let in", n)
	}
}

func TestAClaimedPriorityIsCapped(t *testing.T) {
	zero := 0
	a := newAccount(t, quota.Config{quota.Default: {MaxPriority: &zero}, "vip": {MaxPriority: func() *int { n := 10; return &n }()}})
	seen := make(chan http.Header, 1)
	f := start(t, 1, func(p *router.Params, _ *chooser.Config, _ *registry.Config) { p.Limits = a })
	e := f.engines[0]
	f.script(e.read(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header
		text(200, `{"ok":true}`)(w, r)
	}))
	for _, c := range []struct {
		tenant, body, header string
		want, wantHeader     string
	}{
		{"", `{"model":"m","priority":-5,"messages":[]}`, "", `{"model":"m","priority":0,"messages":[]}`, ""},
		{"", `{"model":"m","priority":3,"messages":[]}`, "", `{"model":"m","priority":3,"messages":[]}`, ""},
		{"", `{"model":"m","messages":[]}`, "-7", `{"model":"m","messages":[]}`, "0"},
		{"vip", `{"model":"m","priority":-5,"messages":[]}`, "", `{"model":"m","priority":-5,"messages":[]}`, ""},
		{"vip", `{"model":"m","priority":-5,"messages":[]}`, "-20", `{"model":"m","priority":-10,"messages":[]}`, "-10"},
	} {
		call := chat(c.body)
		call.Tenant = c.tenant
		if c.header != "" {
			call.Header.Set("X-Vllm-Priority", c.header)
		}
		must(t, f.router.Serve(t.Context(), call, &client{}))
		bodies := e.bodies()
		if got := string(bodies[len(bodies)-1]); got != c.want {
			t.Errorf("%+v: the engine gets %s", c, got)
		}
		if got := (<-seen).Get("X-Vllm-Priority"); got != c.wantHeader {
			t.Errorf("%+v: the engine gets the header %q", c, got)
		}
		if c.header != "" && call.Header.Get("X-Vllm-Priority") != c.header {
			t.Error("the client's header was changed")
		}
	}
	answer, err := f.router.Choose(t.Context(), &intake.Question{Model: "m", Priority: 9, Input: intake.Input{Text: "x"}})
	must(t, err)
	if !answer.Lowered || answer.Priority != 0 {
		t.Errorf("answer %+v, want it at priority 0", answer)
	}
}

func TestARefusalSaysWhenThereIsRoom(t *testing.T) {
	a := newAccount(t, quota.Config{quota.Default: {RequestsPerSecond: 0.1, TokensPerMinute: 600}})
	f := start(t, 1, func(p *router.Params, _ *chooser.Config, _ *registry.Config) { p.Limits = a })
	first := &client{}
	must(t, f.router.Serve(t.Context(), chat(""), first))
	if got := first.header.Get("X-Ratelimit-Remaining-Requests"); got != "0" || first.header.Get("X-Ratelimit-Limit-Tokens") != "600" {
		t.Errorf("an answer's headers are %v", first.header)
	}
	err := apierror.From(f.router.Serve(t.Context(), chat(""), &client{}))
	if err == nil || err.Reason != apierror.RateLimitExceeded || err.HTTPStatus() != 429 || err.RetryAfter < 9*time.Second || err.RetryAfter > 10*time.Second || err.Header.Get("X-Ratelimit-Limit-Requests") != "1" {
		t.Errorf("refusal %+v", err)
	}
	if n := f.requests(); n != 1 {
		t.Errorf("the engine got %d requests", n)
	}
}

// What the router has seen itself is no claim: the rank is gone, so nothing is charged.
func TestAReservationOfALostRankCostsNothing(t *testing.T) {
	a := newAccount(t, plenty())
	f := start(t, 1, func(p *router.Params, _ *chooser.Config, _ *registry.Config) { p.Limits = a })
	answer, err := f.router.Choose(t.Context(), &intake.Question{Model: "m", Input: intake.Input{Text: "x"}, Terms: intake.Terms{Booking: intake.Reserve}})
	must(t, err)
	f.book.RemoveRank(answer.Slot)
	f.chooser.Finish(load.Key{ID: answer.Decision.ID}, chooser.Result{End: decision.EndFailed, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
	if got := a.last(t); got != (quota.Usage{}) {
		t.Errorf("settled by %+v", got)
	}
}

// A reservation keeps what it has been given until it ends, and is settled by what its holder tells.
func TestAReservationIsSettledWhenItEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		result *chooser.Result // nil: the lease runs out
		want   quota.Usage
	}{
		"told":     {&chooser.Result{End: decision.EndCompleted, PromptTokens: 20, OutputTokens: 30, CachedTokens: -1}, quota.Usage{Charge: quota.ChargeClaimed, Prompt: 4, Output: 30, Unbelieved: 16}},
		"not told": {&chooser.Result{End: decision.EndCompleted, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1}, quota.Usage{Charge: quota.ChargeBooked}},
		"canceled": {&chooser.Result{End: decision.EndCanceled, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1}, quota.Usage{Charge: quota.ChargeClaimed, Prompt: 4}},
		"failed":   {&chooser.Result{End: decision.EndFailed, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1}, quota.Usage{Charge: quota.ChargeClaimed}},
		"rejected": {&chooser.Result{End: decision.EndRejected, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1}, quota.Usage{Charge: quota.ChargeClaimed}},
		"removed":  {&chooser.Result{End: decision.EndRemoved, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1}, quota.Usage{Charge: quota.ChargeClaimed}},
		"expired":  {nil, quota.Usage{Charge: quota.ChargeBooked}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAccount(t, quota.Config{quota.Default: {InFlight: 1, ReservedTokens: 1000}})
			f := start(t, 1, func(p *router.Params, _ *chooser.Config, _ *registry.Config) { p.Limits = a })
			ctx, stop := context.WithCancel(t.Context())
			var sweeping sync.WaitGroup
			sweeping.Go(func() { _ = f.book.Run(ctx) })
			defer func() { stop(); sweeping.Wait() }()
			lease := time.Minute
			if c.result == nil {
				lease = 50 * time.Millisecond
			}
			answer, err := f.router.Choose(t.Context(), &intake.Question{Model: "m", ExpectedOutput: 10, Input: intake.Input{Text: "x"}, Terms: intake.Terms{Booking: intake.Reserve, Lease: lease}})
			must(t, err)
			if c.result != nil {
				if _, err := f.router.Choose(t.Context(), &intake.Question{Model: "m", Input: intake.Input{Text: "y"}, Terms: intake.Terms{Booking: intake.Reserve}}); reasonOf(err) != apierror.RateLimitExceeded {
					t.Errorf("while it lives, another one: %v", err)
				}
				f.chooser.Finish(load.Key{ID: answer.Decision.ID, Attempt: uint32(answer.Decision.Attempt)}, *c.result)
				f.chooser.Finish(load.Key{ID: answer.Decision.ID, Attempt: uint32(answer.Decision.Attempt)}, *c.result)
			}
			f.eventually("it is settled", func() bool {
				a.mu.Lock()
				defer a.mu.Unlock()
				return len(a.charges) == 1
			})
			a.check(t)
			if got := a.last(t); got != c.want {
				t.Errorf("settled by %+v, want %+v", got, c.want)
			}
			if _, err := f.router.Choose(t.Context(), &intake.Question{Model: "m", Input: intake.Input{Text: "z"}, Terms: intake.Terms{Booking: intake.DryRun}}); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}
