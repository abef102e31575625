package fleet

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/test/stack"
)

// limited gives a router three tenants with limits.
func limited(c *config.Config) {
	for _, name := range []string{"requests", "tokens", "flight"} {
		c.API.Keys = append(c.API.Keys, callers.Key{Name: name, Key: secret.New("key-of-" + name + "-tenant")})
	}
	c.Tenants = quota.Config{
		"requests": {RequestsPerSecond: 40, RequestBurst: 10},
		"tokens":   {TokensPerMinute: 60_000, TokenBurst: 500},
		"flight":   {InFlight: 6},
	}
}

// answer is what a tenant's request got.
type answer struct {
	status int
	tokens int
	header http.Header
}

// ask sends a request of a tenant.
func ask(ctx context.Context, r *stack.Stack, tenant string, prompt, output int) (answer, error) {
	body := fmt.Sprintf(`{"model":"sim","prompt":%q,"max_tokens":%d,"ignore_eos":true}`, strings.Repeat("a word ", prompt), output)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.HTTP+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer key-of-"+tenant+"-tenant")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{status: resp.StatusCode, header: resp.Header}
	if _, rest, found := strings.Cut(string(text), `"total_tokens":`); found {
		n := strings.IndexFunc(rest, func(c rune) bool { return c < '0' || c > '9' })
		a.tokens, err = strconv.Atoi(rest[:max(n, 0)])
	}
	return a, err
}

// total sums up what a tenant got.
type total struct {
	mu       sync.Mutex
	requests int // guarded by mu
	tokens   int // guarded by mu
	refused  int // guarded by mu
}

// flood sends a tenant's requests to all routers at a rate for each.
func flood(ctx context.Context, t *testing.T, routers []*stack.Stack, tenant string, every time.Duration, prompt, output int) *total {
	sum := new(total)
	var all sync.WaitGroup
	for _, r := range routers {
		all.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				all.Go(func() {
					a, err := ask(context.WithoutCancel(ctx), r, tenant, prompt, output)
					sum.mu.Lock()
					defer sum.mu.Unlock()
					switch {
					case err != nil:
						t.Errorf("%s: %v", tenant, err)
					case a.status == http.StatusOK:
						sum.requests++
						sum.tokens += a.tokens
					case a.status == http.StatusTooManyRequests:
						sum.refused++
						if a.header.Get("Retry-After") == "" {
							t.Errorf("%s: a refusal says nothing of when to retry: %v", tenant, a.header)
						}
					default:
						t.Errorf("%s: status %d", tenant, a.status)
					}
				})
			}
		})
	}
	all.Wait()
	return sum
}

// Three tenants send more than they may to three routers: each gets what one router would give it.
func TestLimitsHoldOverThreeRouters(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for eight seconds")
	}
	routers := start(t, 3, limited)
	shared(t, routers, 1)
	const lasts = 8 * time.Second
	ctx, stop := context.WithTimeout(t.Context(), lasts)
	defer stop()
	sums := map[string]*total{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for tenant, c := range map[string]struct {
		every          time.Duration
		prompt, output int
	}{"requests": {30 * time.Millisecond, 4, 1}, "tokens": {40 * time.Millisecond, 20, 8}, "flight": {50 * time.Millisecond, 4, 800}} {
		all.Go(func() {
			sum := flood(ctx, t, routers, tenant, c.every, c.prompt, c.output)
			mu.Lock()
			sums[tenant] = sum
			mu.Unlock()
		})
	}
	samples, inFlight := 0.0, 0.0 // as the routers count: a client's time has the waits of a busy machine in it
	for ctx.Err() == nil {
		for _, r := range routers {
			inFlight += metric(t, r, `kvpilot_tenant_requests_in_flight{tenant="flight"}`)
		}
		samples++
		time.Sleep(100 * time.Millisecond)
	}
	all.Wait()
	// Within 5 %, and one bucket: routers that have just started may still change the owner of an account.
	check := func(what string, got, rate, burst float64) {
		want := rate*lasts.Seconds() + burst
		t.Logf("%s: %.0f of %.0f, %+.1f %%", what, got, want, 100*(got/want-1))
		if math.Abs(got-want) > 0.05*want+burst {
			t.Errorf("%s: %.0f, want about %.0f", what, got, want)
		}
	}
	check("requests", float64(sums["requests"].requests), 40, 10)
	check("tokens", float64(sums["tokens"].tokens), 1000, 500)
	if mean := inFlight / samples; mean > 6*1.05 || mean < 3 {
		t.Errorf("%.1f requests of the tenant with six in flight were on average", mean)
	}
	alone, reports, moved := 0.0, 0.0, 0.0
	for _, r := range routers {
		alone += metric(t, r, `kvpilot_tenant_grants_alone_total{}`)
		moved += metric(t, r, `kvpilot_peers_limits_owner_changes_total`)
		reports += metric(t, r, `kvpilot_peers_limits_reports_total{outcome="answered"}`)
	}
	t.Logf("%d refusals, %.0f reports between routers, %.0f grants without an owner, %.0f changes of owners", sums["requests"].refused+sums["tokens"].refused+sums["flight"].refused, reports, alone, moved)
}

// shared waits until each router grants a share with all others.
func shared(t *testing.T, routers []*stack.Stack, share float64) {
	t.Helper()
	for i, r := range routers {
		eventually(t, fmt.Sprintf("router %d grants a share of %v", i, share), func() bool {
			return math.Abs(metric(t, r, `kvpilot_peers_limits_share_ratio`)-share) < 1e-6
		})
	}
}

// A tenant's bucket is one: the headers of each router show what is left in the fleet, also after one of them has left.
func TestRoutersShowWhatIsLeftInTheFleet(t *testing.T) {
	stack.Aside(t)
	routers := start(t, 3, func(c *config.Config) {
		limited(c)
		c.Tenants["requests"] = quota.Limits{RequestsPerSecond: 0.001, RequestBurst: 9}
	})
	shared(t, routers, 1)
	for i := range 6 {
		a, err := ask(t.Context(), routers[i%3], "requests", 4, 1)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := a.header.Get("X-Ratelimit-Remaining-Requests"), strconv.Itoa(8-i); a.status != 200 || got != want {
			t.Errorf("request %d: status %d, %s are left, want %s", i, a.status, got, want)
		}
	}
	routers[0].Stop()
	linked(t, routers[1:])
	shared(t, routers[1:], 1)
	passed := 0
	for i := range 8 {
		a, err := ask(t.Context(), routers[1+i%2], "requests", 4, 1)
		if err != nil {
			t.Fatal(err)
		}
		if a.status == 200 {
			passed++
		}
	}
	if passed != 3 {
		t.Errorf("%d requests pass after a router has left, want the 3 that were left", passed)
	}
}
