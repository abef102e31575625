package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// While clients send without a pause, a replica is drained and undrained: no request fails, a stream that runs there ends by
// itself, and no request that is sent after the drain's answer goes there.
func TestADrainUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{replicas: 2, engine: func(i int, c *enginesim.Config) { c.Core.Timing.Speed = 5 }})
	open := openStream(t, t.Context(), f, `{"model":"sim","stream":true,"max_tokens":100,"ignore_eos":true,"messages":[{"role":"user","content":"a stream"}]}`)
	defer open.Body.Close()
	at := open.Header.Get("X-Kvpilot-Replica")

	const clients = 4
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := make(chan struct{})
	defer close(stop)
	for i := range clients {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if a := f.post("/v1/chat/completions", conversation(fmt.Sprint(i, "/", n), 1, "")); a.status != http.StatusOK {
					t.Errorf("a request is answered %d: %s", a.status, a.body)
					return
				}
			}
		})
	}
	got, err := f.command("drain", at, "--reason", "new driver")
	if err != nil || !strings.Contains(got, at+" is draining") {
		t.Errorf("drain: %v %s", err, got)
	}
	for n := range 20 {
		a := f.post("/v1/chat/completions", conversation(fmt.Sprint("after ", n), 1, ""))
		if to := a.header.Get("X-Kvpilot-Replica"); a.status != http.StatusOK || to == at {
			t.Errorf("after the drain's answer: %d from %s", a.status, to)
		}
	}
	if text, err := io.ReadAll(open.Body); err != nil || !bytes.HasSuffix(text, []byte("data: [DONE]\n\n")) {
		t.Errorf("the stream of the draining replica ended with %v: …%q", err, text[max(0, len(text)-100):])
	}
	if got, err := f.command("drain", at, "--wait"); err != nil || !strings.HasSuffix(got, at+" is drained\n") {
		t.Errorf("drain --wait: %v %s", err, got)
	}
	if n := f.metric("kvpilot_registry_draining", `replica="`+at+`"`); n != 1 {
		t.Errorf("kvpilot_registry_draining is %v", n)
	}
	if got, err := f.command("undrain", at); err != nil || !strings.Contains(got, at+" is ready") {
		t.Errorf("undrain: %v %s", err, got)
	}
	f.eventually("it gets requests again", func() bool {
		a := f.post("/v1/chat/completions", conversation("again", 1, ""), "X-Kvpilot-Policy", "round-robin")
		return a.status == http.StatusOK && a.header.Get("X-Kvpilot-Replica") == at
	})
}
