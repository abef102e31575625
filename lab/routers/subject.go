package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
)

// subject is a router to compare.
type subject struct {
	// name is as the operator wrote it: KIND[:POLICY][@PROCESSES].
	name      string
	kind      string
	policy    string
	processes int
	binary    string // of kvpilot
	product   bool   // it is kvpilot
	maker     maker
	version   string
}

// maker knows how one kind of router is installed and started.
type maker interface {
	// install makes it ready and returns its version; install.ErrAbsent: it is not available here.
	install(ctx context.Context, o *options) (version string, err error)
	// command is the command line of one process that listens on port, and may use the folder.
	command(s *subject, f *fleet, port port, dir string) ([]string, error)
	// follows reports whether it subscribes to the replicas' KV events.
	follows(s *subject) bool
}

// port is where a router process listens. gossip and peers are for the other processes of its fleet, join is the gossip port of the first one.
type port struct{ http, admin, extra, gossip, peers, join int }

// running is a router in front of a fleet.
type running struct {
	*subject
	processes []*proc.Process
	ports     []port
	dirs      []string
}

// parse reads the operator's text.
func (o *options) parse(name, binary string) (*subject, error) {
	s := &subject{name: name, processes: 1, binary: binary}
	rest, count, many := strings.Cut(name, "@")
	if many {
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 || n > 64 {
			return nil, fmt.Errorf("router %q: want a number of processes from 1 to 64 behind the @", name)
		}
		s.processes = n
	}
	s.kind, s.policy, _ = strings.Cut(rest, ":")
	makers := map[string]maker{
		"kvpilot":       &kvpilot{settings: o.settings},
		"vllm-router":   &python{pip: "vllm-router", args: vllmRouterArgs, policy: "kv_aware"},
		"smg":           &python{pip: "smg", args: smgArgs, policy: "cache_aware"},
		"sglang-router": &python{pip: "sglang-router", args: sglangArgs, policy: "cache_aware"},
		"dynamo":        &dynamoRouter{python: python{pip: "ai-dynamo-runtime"}},
		"haproxy":       &proxy{program: "haproxy", policy: "leastconn"},
		"nginx":         &proxy{program: "nginx", policy: "least_conn"},
	}
	for _, b := range o.binaries {
		label, path, _ := strings.Cut(b, "=")
		if s.kind == label {
			s.binary = path
			makers[label] = &kvpilot{settings: o.settings}
		}
	}
	var ok bool
	if s.maker, ok = makers[s.kind]; !ok {
		return nil, fmt.Errorf("router %q is not known; known are %v", s.kind, sorted(makers))
	}
	_, s.product = s.maker.(*kvpilot)
	return s, nil
}

func sorted[V any](m map[string]V) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// start starts the router in front of the fleet and waits until it serves.
func (s *subject) start(ctx context.Context, f *fleet, dir string) (_ *running, err error) {
	r := &running{subject: s}
	defer func() {
		if err != nil {
			r.stop()
		}
	}()
	for n := range s.processes {
		numbers, err := proc.FreePorts(ctx, 5)
		if err != nil {
			return nil, err
		}
		at := port{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[3]}
		if n > 0 {
			at.join = r.ports[0].gossip
		}
		own, err := folder(dir, fmt.Sprintf("router-%d", n))
		if err != nil {
			return nil, err
		}
		args, err := s.maker.command(s, f, at, own)
		if err != nil {
			return nil, err
		}
		p, err := start(ctx, own, s.kind, args...)
		if err != nil {
			return nil, err
		}
		r.processes, r.ports, r.dirs = append(r.processes, p), append(r.ports, at), append(r.dirs, own)
		if err := p.Until(ctx, 60*time.Second, poll, func(ctx context.Context) error { return r.serves(ctx, n) }); err != nil {
			return nil, err
		}
	}
	if !s.maker.follows(s) {
		return r, nil
	}
	return r, r.processes[0].Until(ctx, 30*time.Second, poll, func(ctx context.Context) error { return f.followed(ctx, s.processes) })
}

// serves sends a small request through process n.
func (r *running) serves(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	const hello = `{"model":"` + model + `","messages":[{"role":"user","content":"hello"}],"max_tokens":1}`
	return ask(ctx, http.MethodPost, r.url(n)+"/v1/chat/completions", hello, nil)
}

func (r *running) url(n int) string { return fmt.Sprintf("http://127.0.0.1:%d", r.ports[n].http) }

func (r *running) urls() []string {
	var list []string
	for n := range r.ports {
		list = append(list, r.url(n))
	}
	return list
}

func (r *running) stop() {
	for _, p := range r.processes {
		p.Stop(grace)
	}
}

func (r *running) cpu() time.Duration { return cpuOf(r.processes) }

// died names a process that ended while it was measured.
func (r *running) died() error {
	var errs []error
	for _, p := range r.processes {
		if p.Ended() {
			errs = append(errs, fmt.Errorf("%s ended; see %s", p.Name, p.Log))
		}
	}
	return errors.Join(errs...)
}
