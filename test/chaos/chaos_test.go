//go:build unix

package chaos

import (
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/test/programs"
)

// load sends perSecond requests a second for so long, and calls at once at its moment; it returns what each met.
func load(router *process, perSecond int, during, moment time.Duration, stream bool, once func()) []result {
	var mu sync.Mutex
	var all []result
	var wait sync.WaitGroup
	began := time.Now()
	gap := time.Second / time.Duration(perSecond)
	for n := 0; time.Duration(n)*gap < during; n++ {
		at := time.Duration(n) * gap
		time.Sleep(time.Until(began.Add(at)))
		if once != nil && at >= moment {
			once()
			once = nil
		}
		wait.Go(func() {
			r := router.ask(n, began, stream, time.Minute)
			mu.Lock()
			all = append(all, r)
			mu.Unlock()
		})
	}
	wait.Wait()
	slices.SortFunc(all, func(a, b result) int { return int(a.at - b.at) })
	return all
}

// figures sums up the requests sent from a moment on.
func figures(t *testing.T, name string, all []result, from time.Duration) (worst time.Duration, failed, stuck int) {
	t.Helper()
	n := 0
	var worstOf result
	for _, r := range all {
		if r.at < from {
			continue
		}
		n++
		wait := r.first
		if r.first == 0 {
			wait = r.took
		}
		if wait > worst {
			worst, worstOf = wait, r
		}
		if wait > 15*time.Second {
			stuck++
		}
		if r.err != nil || r.status != 200 {
			failed++
			t.Logf("%s: %s", name, r)
		}
	}
	t.Logf("%s: %d requests from %.1f s on, %d failed, %d stuck for more than 15 s, worst wait for a first byte %.2f s (%s)", name, n, from.Seconds(), failed, stuck, worst.Seconds(), worstOf)
	return worst, failed, stuck
}

// two replicas, as slow as a 70B model, and a router.
func two(t *testing.T, more ...string) (replicas []*process, router *process) {
	replicas = []*process{simulate(t, "0"), simulate(t, "0")}
	return replicas, serve(t, replicas, more...)
}

// A replica hangs behind a healthy /health, as a paused vLLM or a hung NCCL does.
func TestWaits12HangBehindHealth(t *testing.T) {
	for name, fault := range map[string]string{
		"the engine computes nothing":           `{"stall":true}`,
		"the server takes requests and is mute": `{"hang":true,"paths":["/v1/completions","/v1/chat"]}`,
	} {
		for _, stream := range []bool{false, true} {
			t.Run(name+", "+map[bool]string{true: "streamed", false: "unstreamed"}[stream], func(t *testing.T) {
				replicas, router := two(t)
				all := load(router, 5, 30*time.Second, 8*time.Second, stream, func() { replicas[0].fault(fault) })
				worst, failed, stuck := figures(t, "hang behind /health 200", all, 0)
				if stuck > 0 || failed > 0 || worst > 10*time.Second {
					t.Errorf("%d stuck, %d failed, worst wait %s", stuck, failed, worst)
				}
			})
		}
	}
}

// A replica that is stopped is avoided within two seconds, and a new request waits three at most.
func TestWaits12Stopped(t *testing.T) {
	const stop = 5 * time.Second
	for _, stream := range []bool{false, true} {
		t.Run(map[bool]string{true: "streamed", false: "unstreamed"}[stream], func(t *testing.T) {
			replicas, router := two(t)
			all := load(router, 10, 15*time.Second, stop, stream, func() { replicas[0].Signal(syscall.SIGSTOP) })
			worst, failed, _ := figures(t, "SIGSTOP, from the stop on", all, stop)
			late, _, _ := figures(t, "SIGSTOP, from two seconds later on", all, stop+2*time.Second)
			if failed > 0 || worst > 3*time.Second || late > time.Second {
				t.Errorf("%d failed, worst wait %s, %s two seconds later", failed, worst, late)
			}
			replicas[0].Signal(syscall.SIGCONT)
			if back := router.until(10*time.Second, func() bool { return router.ready() == 2 }); back > time.Second {
				t.Errorf("ready %s after it goes on", back)
			} else {
				t.Logf("ready %s after it goes on", back.Round(time.Millisecond))
			}
		})
	}
}

// An engine that dies and comes back takes requests within a second of its first healthy answer.
func TestWaits12Killed(t *testing.T) {
	port := programs.FreeAddress(t)
	_, number, _ := net.SplitHostPort(port)
	replicas := []*process{simulate(t, number), simulate(t, "0")}
	router := serve(t, replicas)
	all := load(router, 10, 10*time.Second, 3*time.Second, true, func() { replicas[0].Kill() })
	failed := 0
	for _, r := range all {
		if r.err != nil || r.status != 200 {
			failed++
		}
	}
	again := simulate(t, number)
	healthy := again.until(10*time.Second, func() bool {
		resp, err := http.Get(again.url + "/health")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil && resp.StatusCode == 200
	})
	back := router.until(10*time.Second, func() bool { return router.ready() == 2 })
	t.Logf("kill -9: %d of %d requests failed; healthy %s after the start, ready %s after that", failed, len(all), healthy.Round(time.Millisecond), back.Round(time.Millisecond))
	if back > time.Second {
		t.Errorf("ready %s after its first healthy answer", back)
	}
	if failed > 1 { // a stream that had begun
		t.Errorf("%d requests failed", failed)
	}
}

// When all of a fleet misses its probes at once, nobody is refused: what was sent is answered when it goes on.
func TestWaits12AllStopped(t *testing.T) {
	replicas, router := two(t)
	all := load(router, 5, 12*time.Second, 3*time.Second, true, func() {
		for _, r := range replicas {
			r.Signal(syscall.SIGSTOP)
		}
		time.AfterFunc(8*time.Second, func() {
			for _, r := range replicas {
				r.Signal(syscall.SIGCONT)
			}
		})
	})
	_, failed, _ := figures(t, "both stopped for 8 s", all, 0)
	if failed > 0 {
		t.Errorf("%d requests failed", failed)
	}
}

// A router with few file descriptors refuses what it has no room for, and blames nobody.
func TestWaits16FewDescriptors(t *testing.T) {
	replicas := []*process{simulate(t, "0", "--step-time", "100ms"), simulate(t, "0", "--step-time", "100ms")}
	t.Setenv("CHAOS_LIMIT", "60")
	router := serve(t, replicas)
	began := time.Now()
	var wait sync.WaitGroup
	var mu sync.Mutex
	counts := map[int]int{}
	for n := range 60 {
		wait.Go(func() {
			r := router.ask(n, began, false, 30*time.Second)
			mu.Lock()
			counts[r.status]++
			mu.Unlock()
		})
	}
	wait.Wait()
	t.Logf("60 requests at once with 60 descriptors: answers by status %v, ready replicas %d", counts, router.ready())
	if counts[502] > 0 || router.ready() != 2 {
		t.Errorf("answers by status %v, %d replicas ready", counts, router.ready())
	}
	for n := range 10 {
		if r := router.ask(100+n, began, false, 30*time.Second); r.status != 200 {
			t.Errorf("afterwards: %s", r)
		}
	}
}

// Choices that nobody sends or releases make nobody wait, be they small or large, and a
// caller that reports nothing gets one choice after the other.
func TestWaits14ChoicesNeverSent(t *testing.T) {
	for name, tokens := range map[string]int{"three tokens": 3, "a hundred thousand tokens": 100_000} {
		t.Run(name, func(t *testing.T) {
			_, router := two(t)
			worst := time.Duration(0)
			for n := range 8 {
				began := time.Now()
				if status := router.choose(n, tokens); status != http.StatusOK {
					t.Errorf("choice %d: %d", n, status)
				}
				worst = max(worst, time.Since(began))
			}
			began := time.Now()
			all := load(router, 5, 2*time.Second, 0, false, nil)
			wait, failed, _ := figures(t, "beside eight choices of "+name+" that were never sent", all, 0)
			t.Logf("the choices took %s at most, the requests %s in all", worst.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
			if worst > 3*time.Second || wait > 3*time.Second || failed > 0 {
				t.Errorf("worst choice %s, worst wait %s, %d failed", worst, wait, failed)
			}
		})
	}
}
