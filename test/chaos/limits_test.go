//go:build unix

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// limitSettings are three tenants with limits: of requests, of tokens, and of both.
const limitSettings = `
api:
  keys:
    - {name: requests, key: the-key-of-requests-tenant}
    - {name: tokens, key: the-key-of-tokens-tenant}
    - {name: both, key: the-key-of-both-tenant}
    - {name: ops, key: the-key-of-the-operator, admin: true}
tenants:
  requests: {requests_per_second: 20, request_burst: 20}
  tokens: {tokens_per_minute: 60000, token_burst: 1000}
  both: {requests_per_second: 100, tokens_per_minute: 30000, token_burst: 500, in_flight: 20}
`

// operatorKey is the key of the test itself.
const operatorKey = "the-key-of-the-operator"

// taken counts what each tenant got.
type taken struct {
	mu       sync.Mutex
	requests map[string]int // guarded by mu
	tokens   map[string]int // guarded by mu
	odd      map[string]int // other answers than 200 and 429; guarded by mu
}

// request is one request of a tenant to a router.
func (m *member) request(tenant string, to *taken) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	body := `{"model":"sim","prompt":"` + strings.Repeat("a word ", 15) + `","max_tokens":8,"ignore_eos":true}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.process.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Api-Key", "the-key-of-"+tenant+"-tenant")
	resp, err := http.DefaultClient.Do(req)
	to.mu.Lock()
	defer to.mu.Unlock()
	if err != nil {
		to.odd[err.Error()]++
		return
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		to.odd[err.Error()]++
	case resp.StatusCode == http.StatusOK:
		var got struct {
			Usage struct {
				Total int `json:"total_tokens"`
			} `json:"usage"`
		}
		if err := json.Unmarshal(text, &got); err != nil {
			to.odd[err.Error()]++
		}
		to.requests[tenant]++
		to.tokens[tenant] += got.Usage.Total
	case resp.StatusCode != http.StatusTooManyRequests:
		to.odd[resp.Status]++
	}
}

// TestFleetLimitsInAPartition floods three routers for a minute; for ten seconds of it, one of them does not reach the others.
func TestFleetLimitsInAPartition(t *testing.T) {
	f := startFleetWith(t, limitSettings, 3, 4, "127.0.0.2", "127.0.0.3", "127.0.0.4")
	for _, m := range f.routers {
		m.until(30*time.Second, func() bool { return m.metric("kvpilot_peers_limits_share_ratio", "") == 1 })
	}
	time.Sleep(6 * time.Second) // a router that finds no index to pull is able to own accounts after five seconds
	const lasts = time.Minute
	got := &taken{requests: map[string]int{}, tokens: map[string]int{}, odd: map[string]int{}}
	ctx, stop := context.WithTimeout(t.Context(), lasts)
	defer stop()
	var all sync.WaitGroup
	for tenant, every := range map[string]time.Duration{"requests": 50 * time.Millisecond, "tokens": 40 * time.Millisecond, "both": 60 * time.Millisecond} {
		for _, m := range f.routers {
			all.Go(func() {
				tick := time.NewTicker(every)
				defer tick.Stop()
				for {
					select {
					case <-ctx.Done():
						return
					case <-tick.C:
						all.Go(func() { m.request(tenant, got) })
					}
				}
			})
		}
	}
	share := 0.0
	all.Go(func() {
		time.Sleep(20 * time.Second)
		f.way(0).set(true)
		time.Sleep(5 * time.Second)
		share = f.routers[0].metric("kvpilot_peers_limits_share_ratio", "") + f.routers[1].metric("kvpilot_peers_limits_share_ratio", "")
		time.Sleep(5 * time.Second)
		f.way(0).set(false)
	})
	all.Wait()
	if math.Abs(share-1) > 0.01 {
		t.Errorf("both parts have a share of %v in all, want 1", share)
	}
	if len(got.odd) > 0 {
		t.Errorf("answers other than 200 and 429: %v", got.odd)
	}
	for what, c := range map[string]struct{ got, want float64 }{
		"requests of the first tenant": {float64(got.requests["requests"]), 20*60 + 20},
		"tokens of the second":         {float64(got.tokens["tokens"]), 60_000 + 1000},
		"tokens of the third":          {float64(got.tokens["both"]), 30_000 + 500},
	} {
		t.Logf("%s: %.0f of %.0f, %+.1f %%", what, c.got, c.want, 100*(c.got/c.want-1))
		if math.Abs(c.got/c.want-1) > 0.10 {
			t.Error(fmt.Sprint(what, ": not within 10 % of its limit"))
		}
	}
}
