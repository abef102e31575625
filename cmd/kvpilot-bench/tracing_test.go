package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/lab/bench/measure"
	"github.com/kvpilot/kvpilot/test/programs"
)

// BenchmarkTracing tells what traces cost a request more exactly than kvpilot-bench observe does:
// the routers live in this process, beside each other, and have turns of a tenth of a second in an
// order of chance. Run it with -cpu 1, where nothing spins. Upstream and collector are processes of
// their own. "again" is another router without traces: the noise.
func BenchmarkTracing(b *testing.B) {
	upstream, collector := startRole(b, "upstream"), "telemetry.traces.endpoint="+startRole(b, "collector")
	subjects := []*traced{
		startTraced(b, "none", upstream, "telemetry.traces.ratio=0"),
		startTraced(b, "again", upstream, "telemetry.traces.ratio=0"),
		startTraced(b, "1%", upstream, collector, "telemetry.traces.ratio=0.01"),
		startTraced(b, "100%", upstream, collector, "telemetry.traces.ratio=1"),
	}
	order := slices.Clone(subjects)
	for range 5 {
		for _, s := range order { // connections are open and caches filled
			s.turn(b)
		}
	}
	for _, s := range subjects {
		s.cpu, s.mallocs, s.bytes = nil, 0, 0
	}
	for b.Loop() {
		rand.Shuffle(len(order), func(i, k int) { order[i], order[k] = order[k], order[i] })
		for _, s := range order {
			s.turn(b)
		}
	}
	none := subjects[0]
	for _, s := range subjects[1:] {
		var more []float64
		for i := range s.cpu {
			more = append(more, s.cpu[i]-none.cpu[i])
		}
		slices.Sort(more)
		more = more[len(more)/10 : len(more)-len(more)/10]
		sum := 0.0
		for _, m := range more {
			sum += m
		}
		requests := float64(len(s.cpu) * requestsPerTurn)
		b.ReportMetric(sum/float64(len(more)), s.name+"-µs")
		b.ReportMetric(float64(s.mallocs-none.mallocs)/requests, s.name+"-allocs")
		b.ReportMetric(float64(s.bytes-none.bytes)/requests, s.name+"-bytes")
	}
	b.ReportMetric(0, "ns/op") // a round of turns means nothing
}

const requestsPerTurn = 200

// traced is one router with its client.
type traced struct {
	name    string
	conn    net.Conn
	in      *bufio.Reader
	seed    int
	cpu     []float64 // of each turn, µs per request
	mallocs int64
	bytes   int64
}

// turn sends requests and notes what they took.
func (s *traced) turn(b *testing.B) {
	b.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := measure.CPUTime()
	for range requestsPerTurn {
		s.seed++
		body := fmt.Sprintf(`{"model":"bench","messages":[{"role":"user","content":"%s"}],"max_tokens":200,"seed":%d}`, strings.Repeat("the quick brown fox ", 10), s.seed)
		fmt.Fprintf(s.conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		resp, err := http.ReadResponse(s.in, nil)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			b.Fatal(resp.Status, err)
		}
	}
	ended := measure.CPUTime()
	runtime.ReadMemStats(&after)
	s.cpu = append(s.cpu, float64(ended-began)/1e3/requestsPerTurn)
	s.mallocs += int64(after.Mallocs - before.Mallocs)
	s.bytes += int64(after.TotalAlloc - before.TotalAlloc)
}

// startRole starts one of the benchmarks' processes and returns its address.
func startRole(b *testing.B, name string) string {
	b.Helper()
	p, line, _, err := proc.StartTalking(name, exec.Command(os.Args[0], "stream", "role", name))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(p.Kill) // nothing of it is needed any more
	return strings.TrimSpace(line)
}

// startTraced starts a router in this process and waits until it knows its replica.
func startTraced(b *testing.B, name, upstream string, set ...string) *traced {
	b.Helper()
	log := &programs.Log{}
	address, admin := programs.FreeAddress(b), programs.FreeAddress(b)
	args := []string{"serve", "--replica", "http://" + upstream, "--http", address, "--grpc", "127.0.0.1:0", "--admin", admin, "--set", "listen.drain_delay=0s", "--set", "telemetry.log_level=error"}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := run(ctx, args, []string{"GOGC=400"}, io.Discard, log); err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(func() { cancel(); done.Wait(); http.DefaultClient.CloseIdleConnections() })
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		resp, err := http.Get("http://" + admin + "/readyz")
		if err != nil {
			continue
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			continue
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { conn.Close() })
		return &traced{name: name, conn: conn, in: bufio.NewReader(conn), seed: 10_000_000}
	}
	b.Fatalf("%s is not ready:\n%s", name, log)
	return nil
}
