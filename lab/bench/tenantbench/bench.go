package tenantbench

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// Options say what is measured.
type Options struct {
	// Self is the binary, for the router and the replicas.
	Self string
	// Replicas is how many there are, Loops how many requests each of the two busy tenants has under way.
	Replicas, Loops int
	// Prompt and Answer are tokens.
	Prompt, Answer int
	// Warm is the time before anything counts, For the time that counts, Alone the time that the third has the fleet
	// to itself.
	Warm, For, Alone time.Duration
	// Every is the mean time between the third's requests.
	Every time.Duration
	// Set are further settings of the router, as --set takes them; Sim further flags of the replicas.
	Set, Sim []string
}

// Defaults are the options of the figures in docs/security.md.
func Defaults() Options {
	return Options{Replicas: 4, Loops: 120, Prompt: 2000, Answer: 8, Warm: 15 * time.Second, For: time.Minute, Alone: 30 * time.Second, Every: time.Second}
}

// settings are the tenants: two that flood, by weight, and one that does not.
const settings = `api:
  keys: [{name: a, key: key-of-a-}, {name: b, key: key-of-b-}, {name: c, key: key-of-c-}]
tenants:
  a: {weight: 1}
  b: {weight: 3}
  c: {weight: 1}
`

// Run measures and writes the results.
func Run(ctx context.Context, o Options, out, log io.Writer) error {
	dir, err := os.MkdirTemp("", "kvpilot-tenants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "kvpilot.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		return err
	}
	f, err := startFleet(ctx, o, file, log)
	if err != nil {
		return err
	}
	defer f.stop()

	alone := &tally{}
	if err := f.phase(ctx, o.Alone, func(ctx context.Context) { f.now(ctx, o, "c", alone) }); err != nil {
		return err
	}
	third, busy := &tally{}, map[string]*tally{"a": {}, "b": {}}
	err = f.phase(ctx, o.Warm+o.For, func(ctx context.Context) {
		var all sync.WaitGroup
		for name, t := range busy {
			for range o.Loops {
				all.Go(func() { f.loop(ctx, o, name, t) })
			}
		}
		all.Go(func() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(o.Warm):
			}
			for _, t := range busy {
				t.reset()
			}
			f.now(ctx, o, "c", third)
		})
		all.Wait()
	})
	if err != nil {
		return err
	}
	return report(out, o, busy["a"], busy["b"], alone, third)
}

// phase runs do for so long.
func (f *fleet) phase(ctx context.Context, d time.Duration, do func(context.Context)) error {
	timed, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	do(timed)
	if err := f.failed(); err != nil {
		return err
	}
	return ctx.Err()
}

func report(out io.Writer, o Options, a, b, alone, third *tally) error {
	if a.tokens == 0 || len(alone.first) == 0 || len(third.first) == 0 {
		return fmt.Errorf("too little was measured: a had %d tokens, c %d requests alone and %d together with the others", a.tokens, len(alone.first), len(third.first))
	}
	ratio := float64(b.tokens) / float64(a.tokens)
	fmt.Fprintf(out, "%d replicas, %d requests of each busy tenant under way, prompts of about %d tokens, answers of %d, %s\n\n", o.Replicas, o.Loops, o.Prompt, o.Answer, o.For)
	fmt.Fprintln(out, "| tenant | weight | requests | tokens | share |")
	fmt.Fprintln(out, "|---|---|---|---|---|")
	fmt.Fprintf(out, "| a | 1 | %d | %d | 1 |\n| b | 3 | %d | %d | %.3f (%+.1f %% of 3) |\n\n", a.requests, a.tokens, b.requests, b.tokens, ratio, 100*(ratio/3-1))
	fmt.Fprintln(out, "| time to the first token of c | requests | p50 | p99 |")
	fmt.Fprintln(out, "|---|---|---|---|")
	for _, row := range []struct {
		name string
		t    *tally
	}{{"alone", alone}, {"together with a and b", third}} {
		fmt.Fprintf(out, "| %s | %d | %s | %s |\n", row.name, len(row.t.first), row.t.quantile(0.5), row.t.quantile(0.99))
	}
	fmt.Fprintf(out, "| of a | %d | %s | %s |\n", len(a.first), a.quantile(0.5), a.quantile(0.99))
	if n := a.errors + b.errors + alone.errors + third.errors; n > 0 {
		fmt.Fprintf(out, "\n%d requests failed\n", n)
	}
	return nil
}

// tally is the result of one tenant.
type tally struct {
	mu               sync.Mutex
	requests, tokens int             // guarded by mu
	errors           int             // guarded by mu
	first            []time.Duration // guarded by mu
	since            time.Time       // requests that ended before do not count; guarded by mu
}

func (t *tally) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests, t.tokens, t.first, t.since = 0, 0, nil, time.Now()
}

func (t *tally) add(r result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests++
	t.tokens += r.tokens
	if r.began.After(t.since) {
		t.first = append(t.first, r.first)
	}
}

func (t *tally) fail() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errors++
}

func (t *tally) quantile(q float64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.Sort(t.first)
	return measure.Quantile(t.first, q).Round(time.Millisecond)
}

// words is a prompt of about so many tokens that begins as no other one.
func words(number uint64, tokens int) string {
	return fmt.Sprintf("%x", number*0x9e3779b97f4a7c15) + strings.Repeat(" word", tokens)
}
