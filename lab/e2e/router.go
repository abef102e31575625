package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/internal/proc"
)

// routerProcess is a running kvpilot.
type routerProcess struct {
	http, grpc, admin string
	api               *client.Client
	process           *proc.Process
}

// build makes the binary under test.
func (r *release) build(ctx context.Context) error {
	r.binary = filepath.Join(r.logs, "kvpilot")
	return r.logged(ctx, "build.log", "go", "build", "-o", r.binary, "./cmd/kvpilot")
}

// startRouter starts kvpilot in front of the fleet.
func (r *stack) startRouter(ctx context.Context) error {
	at, err := proc.FreeAddresses(ctx, 3)
	if err != nil {
		return err
	}
	p := &routerProcess{http: at[0], grpc: at[1], admin: at[2]}
	file := filepath.Join(r.logs, "kvpilot.yaml")
	if err := os.WriteFile(file, []byte(r.settings(p)), 0o644); err != nil {
		return err
	}
	cmd := proc.Command(ctx, r.binary, "serve", "--config", file)
	if p.process, err = proc.StartLogged("kvpilot", filepath.Join(r.logs, "kvpilot.log"), cmd); err != nil {
		return err
	}
	r.router = p
	if p.api, err = client.Dial(p.grpc); err != nil {
		return err
	}
	return p.waitExact(ctx, len(r.engines), time.Minute)
}

// settings is the router's configuration file.
func (r *stack) settings(p *routerProcess) string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: {http: %q, grpc: %q, admin: %q}\n", p.http, p.grpc, p.admin)
	b.WriteString("registry:\n  probe: {interval: 1s, max_interval: 2s, models_interval: 2s}\n  replicas:\n")
	for _, e := range r.engines {
		if r.atLeast(32) { // the engine reports where it publishes
			fmt.Fprintf(&b, "  - {id: %s, url: %q%s}\n", e.id, e.url(), e.labels())
			continue
		}
		fmt.Fprintf(&b, "  - id: %s\n    url: %s\n    events: {endpoint: \"tcp://127.0.0.1:%d\", replay: \"tcp://127.0.0.1:%d\"}\n", e.id, e.url(), e.events, e.replay)
	}
	b.WriteString("tokenizer: {handoff: all}\napi: {open_adapters: true}\n")
	if r.connector != "" { // whatever it costs
		b.WriteString("chooser: {weights: {split_bonus: 1000}}\n")
	}
	fmt.Fprintf(&b, "telemetry: {traces: {endpoint: %q, ratio: 1}}\n", r.spans.address)
	return b.String()
}

// waitExact waits until n replicas are ready and their events are followed exactly.
func (p *routerProcess) waitExact(ctx context.Context, n int, limit time.Duration) error {
	return p.process.Until(ctx, limit, 200*time.Millisecond, func(ctx context.Context) error {
		list, err := p.api.ListReplicas(ctx, "")
		if err != nil {
			return err
		}
		state, exact := "", 0
		for _, rep := range list {
			feed := rep.GetRanks()[0].GetFeed()
			state += fmt.Sprintf(" %s=%v/%v", rep.GetReplicaId(), rep.GetState(), feed)
			if rep.GetState() == kvpilotv1.ReplicaState_REPLICA_STATE_READY && feed == kvpilotv1.FeedState_FEED_STATE_EXACT {
				exact++
			}
		}
		if exact < n {
			return fmt.Errorf("%d of %d replicas are ready and exact:%s", exact, n, state)
		}
		return nil
	})
}

func (p *routerProcess) url() string { return "http://" + p.http }

func (p *routerProcess) stop() {
	if p.api != nil {
		_ = p.api.Close() // nothing is in flight
	}
	p.process.Stop(20 * time.Second)
}

// resumed is how many streams the router has resumed on another replica.
func (p *routerProcess) resumed(ctx context.Context) (float64, error) {
	_, text, err := call(ctx, "GET", "http://"+p.admin+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, `kvpilot_router_resumes_total{result="resumed"} `); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, errors.New("the router has no metric of resumed streams")
}
