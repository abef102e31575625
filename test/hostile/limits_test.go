package hostile

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/test/stack"
)

// A replica that reports usage of 10^12 tokens locks no tenant out.
func TestHugeUsageIsNotCharged(t *testing.T) {
	v := startVillain(t)
	v.does(func(w io.Writer) {
		body := `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":999999999999,"completion_tokens":999999999999}}`
		fmt.Fprintf(w, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
	})
	s := stack.Start(t, stack.Options{Existing: []string{"http://" + v.Addr().String()}, Configure: func(c *config.Config) {
		c.Registry.Replicas = []registry.Spec{{URL: "http://" + v.Addr().String()}}
		addTenants(c, "victim")
		c.Tenants = quota.Config{"victim": {TokensPerMinute: 60_000}}
	}})
	for i := range 20 {
		resp, text := as(t, s, "victim", "/v1/chat/completions", `{"model":"evil","messages":[{"role":"user","content":"hi"}]}`)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("request %d: %d %s, left %s", i, resp.StatusCode, text, resp.Header.Get("X-Ratelimit-Remaining-Tokens"))
		}
	}
}

// A caller that books and releases as rejected gets no more than its limit and what refunds allow.
func TestRejectedReleasesAreCharged(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for four seconds of load")
	}
	const perMinute, burst, lasts = 6000, 3000, 4 * time.Second
	s := stack.Start(t, oneReplica(func(c *config.Config) {
		addTenants(c, "greedy")
		c.Tenants = quota.Config{"greedy": {TokensPerMinute: perMinute, TokenBurst: burst}}
	}))
	body := `{"model":"sim","max_tokens":1,"prompt":"` + strings.Repeat("a word ", 100) + `"}`
	booked, refused := 0, 0
	for began := time.Now(); time.Since(began) < lasts; {
		resp, text := as(t, s, "greedy", "/v1/route/choose", body)
		switch resp.StatusCode {
		case http.StatusOK:
		case http.StatusTooManyRequests:
			refused++
			continue
		default:
			t.Fatalf("choose: %d %s", resp.StatusCode, text)
		}
		_, rest, _ := strings.Cut(string(text), `"reservation_id":"`)
		id, _, found := strings.Cut(rest, `"`)
		if !found {
			t.Fatalf("no reservation in %s", text)
		}
		_, rest, _ = strings.Cut(string(text), `"prompt_tokens":`)
		tokens := 0
		if _, err := fmt.Sscan(strings.SplitN(rest, ",", 2)[0], &tokens); err != nil || tokens < 200 {
			t.Fatalf("no prompt in %s", text)
		}
		booked += tokens + 1
		if resp, text := as(t, s, "greedy", "/kvpilot/v1/reservations/"+id+":report", `{"release":{"reason":"RELEASE_REASON_REJECTED"}}`); resp.StatusCode != http.StatusOK {
			t.Fatalf("release: %d %s", resp.StatusCode, text)
		}
	}
	if most := int(1.1 * (burst + perMinute*lasts.Seconds()/60)); booked > most || refused == 0 {
		t.Errorf("%d tokens are booked, want at most %d; %d refusals", booked, most, refused)
	}
	t.Logf("%d tokens are booked in %s, %d refusals", booked, lasts, refused)
}
