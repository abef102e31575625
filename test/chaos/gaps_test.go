//go:build unix

package chaos

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	gapRounds  = 4
	gapStreams = 100 // a quarter of them at the replica that is struck
)

// relay is the way to a replica; broken, it closes the connections that it has, and takes new ones.
type relay struct {
	url   string
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{url: "http://" + ln.Addr().String(), conns: map[net.Conn]struct{}{}}
	t.Cleanup(func() { ln.Close(); r.cut() })
	go func() {
		for {
			here, err := ln.Accept()
			if err != nil {
				return
			}
			there, err := net.Dial("tcp", target.Host)
			if err != nil {
				here.Close()
				continue
			}
			r.mu.Lock()
			r.conns[here] = struct{}{}
			r.mu.Unlock()
			go func() { _, _ = io.Copy(there, here); there.Close() }()
			go func() {
				_, _ = io.Copy(here, there)
				here.Close()
				there.Close()
				r.mu.Lock()
				delete(r.conns, here)
				r.mu.Unlock()
			}()
		}
	}()
	return r
}

// cut closes all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		c.Close()
	}
}

// heard is when the pieces of a stream's text came.
type heard struct {
	replica string
	first   time.Duration // from the request to the first text
	at      []time.Time
	err     error
}

// listen reads one chat answer, and calls begun at its first text.
func (p *process) listen(name string, size int, begun func()) (h heard) {
	begun = sync.OnceFunc(begun)
	defer begun()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	body := fmt.Sprintf(`{"model":"sim","messages":[{"role":"user","content":"%s: %s"}],"max_tokens":%d,"ignore_eos":true,"stream":true}`, name, strings.Repeat("tell me a story ", 100), size)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return heard{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	asked := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return heard{err: err}
	}
	defer resp.Body.Close()
	h.replica = resp.Header.Get("X-Kvpilot-Replica")
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		switch line := lines.Text(); {
		case strings.Contains(line, `"error":`):
			h.err = fmt.Errorf("the stream has %s", line)
			return h
		case line == "data: [DONE]":
			return h
		case strings.Contains(line, `"content":"`) && !strings.Contains(line, `"content":""`):
			if h.at = append(h.at, time.Now()); len(h.at) == 1 {
				h.first = h.at[0].Sub(asked)
			}
			begun()
		}
	}
	h.err = fmt.Errorf("the stream ended early: %w", lines.Err())
	return h
}

// gap is the longest pause of a stream that ends after the moment; 0 when nothing came after it.
func (h *heard) gap(moment time.Time) (longest time.Duration) {
	for i := 1; i < len(h.at); i++ {
		if h.at[i].After(moment) {
			longest = max(longest, h.at[i].Sub(h.at[i-1]))
		}
	}
	return longest
}

// TestGapsOfStreams holds at default settings how long the clients of streams wait when a replica is killed, stops, hangs or loses its connections: 100
// streams in each of four rounds, a quarter of them at that replica.
func TestGapsOfStreams(t *testing.T) {
	binary(t)
	const stall = 4 * time.Second // chooser.stall.after, and the two seconds until a stalled stream is resumed
	for _, c := range []struct {
		name   string
		strike func(*process, *relay)
		most   func(prefill time.Duration) time.Duration
	}{
		{"kill -9", func(p *process, _ *relay) { p.Signal(syscall.SIGKILL) }, func(time.Duration) time.Duration { return stall + time.Second }},
		{"connections break", func(_ *process, r *relay) { r.cut() }, func(prefill time.Duration) time.Duration { return prefill + 500*time.Millisecond }},
		{"SIGSTOP", func(p *process, _ *relay) { p.Signal(syscall.SIGSTOP) }, func(time.Duration) time.Duration { return stall + time.Second }},
		{"the engine hangs behind a good /health", func(p *process, _ *relay) { p.fault(`{"stall":true}`) }, func(time.Duration) time.Duration { return stall + time.Second }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var struck, others, firsts []time.Duration
			lost := 0
			for round := range gapRounds {
				t.Run(fmt.Sprint(round), func(t *testing.T) {
					var replicas, ways []*process
					var relays []*relay
					for range 4 {
						p := simulate(t, "0")
						r := newRelay(t, p.url)
						replicas, relays, ways = append(replicas, p), append(relays, r), append(ways, &process{t: t, url: r.url})
					}
					router := serve(t, ways, "--set", "telemetry.log_level=error", "--set", "chooser.policy=round-robin")
					victim := router.idOf(relays[1].url)
					all := make([]heard, gapStreams)
					var begun, wait sync.WaitGroup
					begun.Add(gapStreams)
					for n := range all {
						wait.Go(func() { all[n] = router.listen(fmt.Sprintf("%d-%d", round, n), 250, begun.Done) })
					}
					begun.Wait()
					moment := time.Now()
					c.strike(replicas[1], relays[1])
					wait.Wait()
					for n := range all {
						h := &all[n]
						if firsts = append(firsts, h.first); h.err != nil {
							lost++
							t.Errorf("stream %d of %s: %v", n, h.replica, h.err)
						}
						if h.replica == victim {
							struck = append(struck, h.gap(moment))
						} else {
							others = append(others, h.gap(moment))
						}
					}
				})
			}
			at := func(list []time.Duration, q float64) time.Duration {
				slices.Sort(list)
				return list[int(q*float64(len(list)-1))].Round(time.Millisecond)
			}
			if len(struck) < gapRounds*gapStreams/8 {
				t.Fatalf("only %d streams were at the replica that was struck", len(struck))
			}
			prefill := at(firsts, 0.5)
			most := c.most(prefill)
			t.Logf("| %s | %d | %d | %s | %s | %s | ≤ %s | %s |", c.name, len(struck), lost, at(struck, 0.5), at(struck, 0.99), at(struck, 1), most, at(others, 0.99))
			t.Logf("median time to the first of 100 texts at once: %s", prefill)
			if p99 := at(struck, 0.99); p99 > most {
				t.Errorf("p99 %s, want at most %s", p99, most)
			}
		})
	}
}
