package fleet

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/test/stack"
)

// TestMain lets more tests run at once than there are processors: they wait more than they compute.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "4")
	goleak.VerifyTestMain(m)
}

// start starts n routers in front of the same two replicas, and waits until all are linked.
func start(t *testing.T, n int, configure ...func(*config.Config)) []*stack.Stack {
	t.Helper()
	var routers []*stack.Stack
	for i := range n {
		routers = append(routers, startOne(t, fmt.Sprintf("router-%d", i), routers, configure...))
	}
	linked(t, routers)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return routers
}

// startOne starts a router that joins others, in front of their replicas.
func startOne(t *testing.T, name string, others []*stack.Stack, configure ...func(*config.Config)) *stack.Stack {
	t.Helper()
	return stack.Start(t, fleetOptions(name, others, configure...))
}

// fleetOptions are those of a router that joins others.
func fleetOptions(name string, others []*stack.Stack, configure ...func(*config.Config)) stack.Options {
	o := stack.Options{Configure: func(c *config.Config) {
		f := &c.Fleet
		f.Name, f.Listen, f.RPCListen, f.Key = name, "127.0.0.1:0", "127.0.0.1:0", secret.New("the key of the fleet under test")
		f.Patience = 5 * time.Second // a busy machine is no silent router
		c.Registry.Registration.Enabled = true
		for _, other := range others {
			f.Join = append(f.Join, other.Gossip)
		}
		for _, change := range configure {
			change(c)
		}
	}}
	if len(others) > 0 {
		o.Existing = others[0].Replicas
	}
	return o
}

func linked(t *testing.T, routers []*stack.Stack) {
	t.Helper()
	eventually(t, "all routers are linked", func() bool {
		for _, r := range routers {
			for _, half := range []string{`half="decider",state="up"`, `half="frontend",state="up"`} {
				if metric(t, r, `kvpilot_peers_links{`+half+`}`) != float64(len(routers)-1) {
					return false
				}
			}
		}
		return true
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) { // real sockets and processes' timers
		if time.Now().After(deadline) {
			t.Fatalf("not within 20s: %s", what)
		}
	}
}

// metric reads one series of a router; series without a value are 0.
func metric(t *testing.T, r *stack.Stack, series string) float64 {
	t.Helper()
	resp, err := http.Get("http://" + r.Admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	pattern := strings.ReplaceAll(regexp.QuoteMeta(series), `\{`, `\{[^}]*?`)
	sum := 0.0
	for _, found := range regexp.MustCompile(`(?m)^`+pattern+` ([0-9.e+-]+)`).FindAllSubmatch(text, -1) {
		v, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += v
	}
	return sum
}

func post(r *stack.Stack, prompt string) error {
	body := fmt.Sprintf(`{"model":"sim","prompt":%q,"max_tokens":4}`, prompt)
	resp, err := http.Post("http://"+r.HTTP+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return err
}

// burst posts n requests to each router at the same time.
func burst(t *testing.T, routers []*stack.Stack, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for i, r := range routers {
		for k := range n {
			wg.Go(func() {
				if err := post(r, fmt.Sprintf("prompt %d of router %d", k, i)); err != nil {
					t.Errorf("router %d: %v", i, err)
				}
			})
		}
	}
	wg.Wait()
}

func TestOneRouterDecidesForAll(t *testing.T) {
	stack.Aside(t)
	routers := start(t, 3)
	burst(t, routers, 20)
	asked, answered := 0.0, 0.0
	for _, r := range routers {
		asked += metric(t, r, `kvpilot_peers_asks_total{outcome="chosen"}`)
		answered += metric(t, r, `kvpilot_peers_answers_total{outcome="chosen"}`)
	}
	if asked != 40 || answered != 40 {
		t.Errorf("%v questions and %v answers, want 40: two of three routers ask for each of 20 requests", asked, answered)
	}
	for i, r := range routers {
		eventually(t, fmt.Sprintf("router %d has no booking", i), func() bool {
			return metric(t, r, `kvpilot_peers_bookings`) == 0 && metric(t, r, `kvpilot_peers_foreign_bookings`) == 0
		})
	}
	for len(routers) > 1 {
		gone := routers[0]
		routers = routers[1:]
		gone.Stop()
		linked(t, routers)
		burst(t, routers, 10)
	}
}
