package router_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Engines that push find each other by the request id alone: both legs of a request have the same, and no other request has it, whatever
// id their clients sent.
func TestLegsThatPushShareAnIDThatNoOtherRequestHas(t *testing.T) {
	p := newPairOf(t, "nixl-push", nil, nil)
	var wait sync.WaitGroup
	for i := range 50 {
		wait.Go(func() {
			to := &client{}
			if err := p.router.Serve(t.Context(), completion(1000+i, `,"stream":true,"request_id":"mine"`), to); err != nil || to.status != 200 {
				t.Errorf("Serve() = %v, %d", err, to.status)
			}
		})
	}
	wait.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	prompts, split := map[string]int{}, 0
	for i := range p.engines {
		for _, l := range p.legs[i] {
			if l.part() == "whole" {
				continue
			}
			if first, seen := prompts[l.id]; seen && first != l.Prompt[0] || l.id == "req-1" {
				t.Errorf("the id %s names the prompts %d and %d", l.id, first, l.Prompt[0])
			}
			prompts[l.id] = l.Prompt[0]
			split++
		}
	}
	if split == 0 || split != 2*len(prompts) {
		t.Errorf("%d legs have %d ids", split, len(prompts))
	}
}

// An engine whose partner dies waits for good: the leg is stopped, the request served whole, and the engine that waited is not to blame.
func TestLegThatWaitsForADeadReplicaIsStopped(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]string{"streamed": `,"stream":true`, "in one piece": ``} {
		t.Run(name, func(t *testing.T) {
			waits := make(chan struct{})
			var once sync.Once
			p := newPairOf(t, "nixl-push", nil, func(w http.ResponseWriter, r *http.Request) {
				once.Do(func() { close(waits) })
				if more != "" {
					streaming(nil, nil)(w, r)
				}
				<-r.Context().Done()
			})
			p.router.SetLegs(time.Hour, time.Millisecond)
			go func() {
				<-waits
				p.engines[0].srv.CloseClientConnections()
				p.engines[0].srv.Listener.Close()
			}()
			to := &client{}
			must(t, p.router.Serve(t.Context(), completion(7, more), to))
			if !strings.Contains(to.body.String(), `"whole"`) || to.status != 200 {
				t.Errorf("the client got %d %s", to.status, &to.body)
			}
			if got := p.counted("kvpilot.router.transfers"); got != "1 lost" {
				t.Errorf("counted %s", got)
			}
			if r, _ := p.params.Registry.Snapshot().Replica("r1"); r.State != replica.StateReady {
				t.Errorf("the replica that waited is %v", r.State)
			}
			p.end()
		})
	}
}

// An engine whose client leaves while it waits for what is pushed keeps the blocks for good: its leg outlives the client until it has them.
func TestLegThatIsPushedToOutlivesItsClient(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	var early bool
	p := newPairOf(t, "nixl-push", nil, func(w http.ResponseWriter, r *http.Request) {
		streaming(nil, nil)(w, r)
		leave()
		select {
		case <-r.Context().Done():
			early = true
		case <-time.After(300 * time.Millisecond):
		}
		io.WriteString(w, said("decode"))
		w.(http.Flusher).Flush()
		<-r.Context().Done() // now it may
	})
	began := time.Now()
	if err := p.router.Serve(ctx, completion(7, `,"stream":true`), &client{onWrite: func([]byte) error { return ctx.Err() }}); err == nil {
		t.Error("the client that left was answered")
	}
	if took := time.Since(began); early || took > 4*time.Second {
		t.Errorf("the leg ended with its client: %t, after %s", early, took)
	}
	p.end()
}
