package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/cmd/internal/build"
	"github.com/kvpilot/kvpilot/server"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// demoRouter is one of the demo's routers.
type demoRouter struct {
	name    string
	server  *server.Server
	gossip  net.Listener // nil for a router alone
	serving server.Serving
	at      server.Addresses // once it serves
}

func (r *demoRouter) base() string { return "http://" + dialableString(r.at.HTTP) }

// close closes the gossip sockets of a router that was never run.
func (r *demoRouter) close() {
	if r.gossip != nil {
		r.gossip.Close()
	}
}

// newRouters makes the routers. Several are a fleet, joined over the loopback.
func (d *demo) newRouters(ctx context.Context, specs []registry.Spec) (_ []*demoRouter, err error) {
	var list []*demoRouter
	defer func() {
		if err != nil {
			for _, r := range list {
				r.close()
			}
		}
	}()
	key := secret.New(rand.Text())
	for n := range d.routers {
		c, err := d.config(ctx, specs, n)
		if err != nil {
			return list, err
		}
		r := &demoRouter{name: "router-" + strconv.Itoa(n), serving: make(server.Serving, 1)}
		list = append(list, r)
		if d.routers > 1 {
			if r.gossip, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
				return list, fmt.Errorf("open a port for the fleet: %w", err)
			}
			c.Fleet.Name, c.Fleet.Key = r.name, key
			c.Fleet.Listen, c.Fleet.RPCListen = r.gossip.Addr().String(), "127.0.0.1:0"
			c.Fleet.Join = []string{list[0].gossip.Addr().String()}
		}
		if err := c.Validate(); err != nil {
			return list, err
		}
		r.server, err = server.New(ctx, c, server.Params{
			LogTo: d.log, Version: build.Read().Version, Manager: r.serving,
			Listeners: server.Listeners{Gossip: r.gossip},
		})
		if err != nil {
			return list, err
		}
	}
	return list, nil
}

// runRouters runs all routers until ctx ends, and the rest when one fails.
func runRouters(ctx context.Context, list []*demoRouter) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	errs := make([]error, len(list))
	var wait sync.WaitGroup
	for i, r := range list {
		wait.Go(func() {
			if errs[i] = r.server.Run(ctx); errs[i] != nil {
				stop()
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// untilServing waits until all routers serve and each is linked with every other one.
func untilServing(ctx context.Context, list []*demoRouter) error {
	for _, r := range list {
		select {
		case r.at = <-r.serving:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, fleetWait)
	defer cancel()
	for _, r := range list {
		for len(list) > 1 && r.metric(ctx, "kvpilot_peers_links", `half="frontend"`, `state="up"`) < float64(len(list)-1) {
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				if errors.Is(ctx.Err(), context.Canceled) {
					return ctx.Err()
				}
				return fmt.Errorf("%s is not linked with all other routers after %v", r.name, fleetWait)
			}
		}
	}
	return nil
}

// metric is the sum of a metric's series that have all labels; 0 when there is none.
func (r *demoRouter) metric(ctx context.Context, name string, labels ...string) (sum float64) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+dialableString(r.at.Admin)+"/metrics", nil)
	if err != nil {
		return 0
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0 // it is stopping
	}
	defer resp.Body.Close()
lines:
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := lines.Text()
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(rest, label) {
				continue lines
			}
		}
		if v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64); err == nil {
			sum += v
		}
	}
	return sum
}

// splits prints how many requests were split between two replicas, and how a prompt's beginning was copied for a fork.
func (d *demo) splits(ctx context.Context, list []*demoRouter, fork *phase) {
	if !d.disaggregated {
		return
	}
	var whole, split, copies float64
	for _, r := range list {
		copies += r.metric(ctx, "kvpilot_router_copies_total", `result="done"`)
		whole += r.metric(ctx, "kvpilot_chooser_ways_total", `way="whole"`)
		split += r.metric(ctx, "kvpilot_chooser_ways_total", `way="split"`)
	}
	fmt.Fprintf(d.out, "\nof %.0f requests that could be split, %.0f had their prompt computed by one replica and their answer written by another\n", whole+split, split)
	fmt.Fprintf(d.out, "of %d requests at once that began with the same %.0f tokens, %.0f %% of the prompts came from a cache; %.0f copies of beginnings between replicas; first token p50 %.2f s, p90 %.2f s\n",
		fork.Requests, float64(fork.PromptTokens)/float64(max(1, fork.Requests)), 100*fork.CachedShare(), copies, fork.TTFT(0.5).Seconds(), fork.TTFT(0.9).Seconds())
}

// decisions prints which router decides, and how often the others asked it.
func (d *demo) decisions(ctx context.Context, list []*demoRouter, model string) {
	if len(list) < 2 {
		return
	}
	fmt.Fprintln(d.out)
	for _, r := range list {
		asks, alone := r.metric(ctx, "kvpilot_peers_asks_total", `outcome="chosen"`), r.metric(ctx, "kvpilot_peers_alone_total")
		does := fmt.Sprintf("asked for %.0f decisions", asks)
		if r.metric(ctx, "kvpilot_peers_decider") > 0 {
			does = fmt.Sprintf("decides for model %s, made %.0f decisions for the others", model, r.metric(ctx, "kvpilot_peers_answers_total", `outcome="chosen"`))
		}
		if alone > 0 {
			does += fmt.Sprintf(", made %.0f without the decider", alone)
		}
		fmt.Fprintf(d.out, "%s %s\n", r.name, does)
	}
}
