package main

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// result is the agents' results. It is safe for concurrent use.
type result struct {
	from           time.Time // calls and programs that end before do not count
	mu             sync.Mutex
	prompt, cached int             // tokens; guarded by mu
	first          []time.Duration // to the first token of each call that ended; guarded by mu
	programs       int             // that made all their calls; guarded by mu
	failed         int             // guarded by mu
}

func (r *result) add(u usage, first time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.from) {
		return
	}
	r.prompt += u.Prompt
	r.cached += u.Details.Cached
	r.first = append(r.first, first)
}

func (r *result) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !time.Now().Before(r.from) {
		r.programs++
	}
}

// fail counts a failure. The first ones are written.
func (r *result) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed++; r.failed <= 3 {
		fmt.Fprintln(os.Stderr, "agents:", err)
	}
}

// row is the result as a line of the table.
func (r *result) row(agents int, over time.Duration) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.first)
	if n == 0 {
		return fmt.Sprintf("| %d | 0 | – | %d | – | %d |", agents, r.programs, r.failed)
	}
	slices.Sort(r.first)
	var sum time.Duration
	for _, d := range r.first {
		sum += d
	}
	at := func(q float64) float64 { return r.first[min(n-1, int(q*float64(n)))].Seconds() }
	return fmt.Sprintf("| %d | %.1f | %.2f | %d | %.2f, %.2f, %.1f | %d |",
		agents, float64(n)/over.Seconds(), float64(r.cached)/float64(max(1, r.prompt)), r.programs, at(0.5), sum.Seconds()/float64(n), at(0.99), r.failed)
}
