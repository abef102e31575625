package hostile

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// fault makes something wrong with a simulated replica.
func fault(t *testing.T, replica, faults string) {
	t.Helper()
	resp, err := http.Post(replica+"/sim/faults", "application/json", strings.NewReader(faults))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("the fault %s: %s", faults, resp.Status)
	}
}

// streamed is what became of one streamed request.
type streamed struct {
	at      time.Time
	replica string
	tokens  int
	whole   bool
	err     error
}

// stream asks for an answer of so many tokens and reads it to its end.
func stream(ctx context.Context, router string, n, tokens int) (s streamed) {
	s.at = time.Now()
	body := fmt.Sprintf(`{"model":"sim","stream":true,"ignore_eos":true,"max_tokens":%d,"messages":[{"role":"user","content":"%d %s"}]}`,
		tokens, n, strings.Repeat(fmt.Sprintf("word%d ", n), 1500))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+router+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		s.err = err
		return s
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.err = err
		return s
	}
	defer resp.Body.Close()
	s.replica = resp.Header.Get("X-Kvpilot-Replica")
	if resp.StatusCode != http.StatusOK {
		s.err = fmt.Errorf("%s", resp.Status)
		return s
	}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		switch line := lines.Text(); {
		case line == "data: [DONE]":
			s.whole = true
		case strings.Contains(line, `"content":"`) && !strings.Contains(line, `"content":""`):
			s.tokens++
		}
	}
	return s
}

// load sends rate streams per second for the time d and returns what became of those that were sent. Streams that run at the end are left.
func load(t *testing.T, router string, rate int, d time.Duration, tokens int) []streamed {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var list []streamed
	var wait sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for n := range int(d.Seconds() * float64(rate)) {
		<-tick.C
		wait.Go(func() {
			s := stream(ctx, router, n, tokens)
			mu.Lock()
			defer mu.Unlock()
			list = append(list, s)
		})
	}
	cancel()
	wait.Wait()
	return list
}

// metricLine finds a line of the router's metrics that has all of some parts.
func metricLine(t *testing.T, s *stack.Stack, parts ...string) string {
	t.Helper()
	resp, err := http.Get("http://" + s.Admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(all)) {
		found := true
		for _, part := range parts {
			found = found && strings.Contains(line, part)
		}
		if found {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// startNamed starts a router before slower replicas that are named r0, r1 and so on. What their metrics say is not looked at: a replica that
// lies would let them agree with its answers.
func startNamed(t *testing.T, replicas int) *stack.Stack {
	t.Helper()
	return stack.Start(t, stack.Options{
		Replicas: replicas, Engine: func(c *enginesim.Config) { c.Core.Timing.Speed = 4 },
		Configure: func(c *config.Config) {
			for i := range c.Registry.Replicas {
				c.Registry.Replicas[i].ID = replica.ID(fmt.Sprintf("r%d", i))
			}
			c.Chooser.Stall.After = 0
		},
	})
}

// A replica gives the first token at once and then a hundred times fewer per second than the three others: it took all of the traffic.
func TestAReplicaThatIsOnlyQuickToBeginGetsLittle(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for fourteen seconds of load")
	}
	s := startNamed(t, 4)
	fault(t, s.Replicas[0], `{"drip":"250ms"}`)
	began := time.Now()
	list := load(t, s.HTTP, 17, 14*time.Second, 60)
	count, late := map[string]int{}, 0
	for _, one := range list {
		if one.at.Sub(began) > 8*time.Second {
			count[one.replica]++
			late++
		}
		if one.replica != "r0" && one.err == nil && !one.whole && one.at.Sub(began) < 8*time.Second {
			t.Errorf("an honest replica's answer is cut short after %d tokens", one.tokens)
		}
	}
	if count["r0"]*10 > late {
		t.Errorf("after eight seconds the liar still gets %d of %d requests: %v", count["r0"], late, count)
	}
	if line := metricLine(t, s, "kvpilot_chooser_suspect_ratio{", `"r0"`, `suspicion="slow"`); !strings.HasSuffix(line, " 1") {
		t.Errorf("the metrics have %q", line)
	}
	if line := metricLine(t, s, "kvpilot_chooser_suspicions_total{", `suspicion="slow"`); line == "" || strings.HasSuffix(line, " 0") {
		t.Errorf("the metrics have %q", line)
	}
	for _, other := range []string{`"r1"`, `"r2"`, `"r3"`} {
		if line := metricLine(t, s, "kvpilot_chooser_suspect_ratio{", other, `suspicion="slow"`); !strings.HasSuffix(line, " 0") {
			t.Errorf("of an honest replica the metrics have %q", line)
		}
	}
}

// A replica whose streams are empty kept a third to a half of the traffic, and their callers got nothing.
func TestEmptyStreamsReachNoCaller(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for eight seconds of load")
	}
	stack.Aside(t)
	s := startNamed(t, 3)
	fault(t, s.Replicas[0], `{"empty":true}`)
	for i, one := range load(t, s.HTTP, 15, 8*time.Second, 8) {
		if one.err == nil && one.tokens == 0 && one.whole {
			t.Errorf("request %d got an empty answer of %s", i, one.replica)
		}
	}
	if line := metricLine(t, s, "kvpilot_router_empty_answers_total{", `result="retried"`); line == "" || strings.HasSuffix(line, " 0") {
		t.Errorf("the metrics have %q", line)
	}
	if line := metricLine(t, s, "kvpilot_chooser_suspicions_total{", `suspicion="empty"`); line == "" || strings.HasSuffix(line, " 0") {
		t.Errorf("the metrics have %q", line)
	}
	if line := metricLine(t, s, "kvpilot_router_retries_total{", `outcome="empty"`); line == "" || strings.HasSuffix(line, " 0") {
		t.Errorf("the metrics have %q", line)
	}
}
