package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
)

// fleet says what to start for an attack.
type fleet struct {
	// replicas is the number of simulated replicas; 0: three.
	replicas int
	// fronts are the manners of the proxies before the first replicas; nil: no proxy.
	fronts []manners
	// routers is the number of routers, which share one fleet; 0: one without a fleet.
	routers int
	// files limits the router's file descriptors; 0: as they are.
	files int
	// rate is the requests per second of each honest tenant; 0: five.
	rate int
	// settings are lines of YAML at the end of the router's settings.
	settings string
}

// The callers of every fleet. Honest tenants have no limits unless the fleet's settings have some.
const (
	attackerKey = "key-of-the-attacker"
	observerKey = "key-of-an-observer"
	adminKey    = "key-of-operators"
	keysFile    = "a:key-of-tenant-a\nb:key-of-tenant-b\nc:key-of-tenant-c\nattacker:" + attackerKey +
		"\nforwarder:key-of-a-forwarder roles=infer,route,forward\nattacker:" + observerKey + " roles=observe\nops:" + adminKey + ":admin\n"
)

// world is a running fleet.
type world struct {
	routers  []*router
	fronts   []*front
	replicas []replica
	honest   *honest
	began    time.Time // of the attack
	attacked []result
	found    findings
	memory   int // of each router, in MiB

	sims []*proc.Process
}

// replica is an engine as the router sees it.
type replica struct{ id, url, events, engine string }

func (w *world) router() *router { return w.routers[0] }

func (w *world) close() {
	for _, r := range w.routers {
		r.Stop(3 * time.Second)
	}
	for _, f := range w.fronts {
		f.close()
	}
	for _, s := range w.sims {
		s.Stop(time.Second)
	}
}

// start starts all of a fleet. The caller closes the world, also one that came with an error.
func start(ctx context.Context, f fleet, o options, dir string) (*world, error) {
	f.replicas = cmp.Or(f.replicas, 3)
	w := &world{memory: o.memory}
	if err := w.simulate(ctx, f, o, dir); err != nil {
		return w, err
	}
	if err := os.WriteFile(filepath.Join(dir, "keys"), []byte(keysFile), 0o600); err != nil {
		return w, err
	}
	n := max(1, f.routers)
	at, err := proc.FreeAddresses(ctx, 5*n)
	if err != nil {
		return w, err
	}
	for a := range slices.Chunk(at, 5) {
		w.routers = append(w.routers, &router{http: a[0], grpc: a[1], admin: a[2], gossip: a[3], rpc: a[4]})
	}
	for i, r := range w.routers {
		if err := w.serve(ctx, f, o, dir, i, r); err != nil {
			return w, err
		}
	}
	w.honest = newHonest(w.routers, cmp.Or(f.rate, 5))
	return w, nil
}

// simulate starts the replicas, all in one process, and the proxies before them.
func (w *world) simulate(ctx context.Context, f fleet, o options, dir string) error {
	log := filepath.Join(dir, "replicas.log")
	cmd := proc.Command(ctx, o.binary, "sim", "--count", fmt.Sprint(f.replicas), "--port", "0", "--events-port", "0", "--no-replay", "--speed", "2")
	sims, err := proc.StartLogged("replicas", log, cmd)
	if err != nil {
		return err
	}
	w.sims = append(w.sims, sims)
	err = sims.Until(ctx, 20*time.Second, 20*time.Millisecond, func(context.Context) error {
		w.replicas, err = readReplicas(log)
		if err == nil && len(w.replicas) < f.replicas {
			err = errors.New("not all replicas serve")
		}
		return err
	})
	if err != nil {
		return err
	}
	for i, m := range f.fronts {
		if m == nil {
			continue
		}
		front, err := newFront(ctx, w.replicas[i].engine, m)
		if err != nil {
			return err
		}
		w.fronts = append(w.fronts, front)
		w.replicas[i].url = front.url
	}
	return nil
}

// readReplicas reads the output of kvpilot sim: a line per replica with its URL and its events' address.
func readReplicas(log string) ([]replica, error) {
	f, err := os.Open(log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []replica
	for lines := bufio.NewScanner(f); lines.Scan(); {
		url, rest, ok := strings.Cut(lines.Text(), "  ")
		_, events, also := strings.Cut(rest, "events ")
		if ok && also {
			all = append(all, replica{id: fmt.Sprintf("r%d", len(all)), url: url, engine: url, events: strings.TrimSuffix(strings.Fields(events)[0], ",")})
		}
	}
	return all, nil
}

func (w *world) serve(ctx context.Context, f fleet, o options, dir string, i int, r *router) error {
	var text strings.Builder
	fmt.Fprintf(&text, "listen: {http: %q, grpc: %q, admin: %q, drain_timeout: 1s}\n", r.http, r.grpc, r.admin)
	fmt.Fprintf(&text, "memory: {max_bytes: %d}\napi: {keys_file: %q}\ntelemetry: {log_level: warn}\n", o.memory<<20, filepath.Join(dir, "keys"))
	if f.routers > 1 {
		fmt.Fprintf(&text, "fleet: {name: router-%d, listen: %q, rpc_listen: %q, key: %q, join: [%q]}\n", i, r.gossip, r.rpc, "a key of this attack's fleet", w.routers[0].gossip)
	}
	text.WriteString("registry:\n  replicas:\n")
	for _, e := range w.replicas {
		fmt.Fprintf(&text, "    - {id: %s, url: %q, events: {endpoint: %q}}\n", e.id, e.url, e.events)
	}
	text.WriteString(f.settings)
	config := filepath.Join(dir, fmt.Sprintf("router-%d.yaml", i))
	if err := os.WriteFile(config, []byte(text.String()), 0o600); err != nil {
		return err
	}
	cmd := proc.Command(ctx, o.binary, "serve", "--config", config)
	if f.files > 0 {
		cmd = proc.Command(ctx, "sh", "-c", `ulimit -n "$0" && exec "$@"`, fmt.Sprint(f.files), o.binary, "serve", "--config", config)
	}
	p, err := proc.StartLogged(fmt.Sprintf("router %d", i), filepath.Join(dir, fmt.Sprintf("router-%d.log", i)), cmd)
	if err != nil {
		return err
	}
	r.Process = p
	return p.Until(ctx, 20*time.Second, 20*time.Millisecond, func(ctx context.Context) error { return ready(ctx, r, len(w.replicas)) })
}

// ready checks that the router has the replicas.
func ready(ctx context.Context, r *router, replicas int) error {
	body, err := get(ctx, "http://"+r.http+"/kvpilot/v1/replicas", observerKey)
	if err != nil {
		return err
	}
	if n := strings.Count(body, `"REPLICA_STATE_READY"`); n < replicas {
		return fmt.Errorf("%d of %d replicas are ready", n, replicas)
	}
	return nil
}

// get reads a page of the router.
func get(ctx context.Context, url, key string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %.200s", url, resp.Status, body)
	}
	return string(body), err
}
