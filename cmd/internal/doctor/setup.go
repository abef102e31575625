package doctor

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// setup is the common state of the checks. settings and replicas fill it in; checks that need them come later.
type setup struct {
	params   Params
	machine  machine
	conf     config.Config
	observer *server.Observer
	replicas []*replica.Replica
	client   *http.Client
	engines  *upstream.Client // for questions to tokenizers

	running sync.WaitGroup
	stop    context.CancelFunc

	mu      sync.Mutex
	probes  map[replica.ID]func() registry.Examination             // guarded by mu
	metrics map[replica.ID]func() (enginestats.Examination, error) // guarded by mu
	stored  map[replica.Slot][]kvblock.Stored                      // guarded by mu: events of all tiers, while they are kept
	lower   map[replica.Slot]belowGPU                              // guarded by mu
	keeping bool                                                   // guarded by mu
	failure error                                                  // guarded by mu: why the observer ended
	sent    map[replica.Slot]time.Time                             // guarded by mu: when a rank got a request
}

// maxKept bounds the events that are kept of one rank.
const maxKept = 4096

func newSetup(p Params) *setup {
	return &setup{
		params: p, machine: p.machine, stop: func() {},
		probes: map[replica.ID]func() registry.Examination{}, metrics: map[replica.ID]func() (enginestats.Examination, error){},
		stored: map[replica.Slot][]kvblock.Stored{}, lower: map[replica.Slot]belowGPU{},
		sent: map[replica.Slot]time.Time{},
		client: &http.Client{
			Transport: tlspeer.NewTransports(&http.Transport{
				DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext, TLSHandshakeTimeout: dialTimeout, DisableKeepAlives: true,
			}),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// observe starts the router's own parts. close ends them.
func (s *setup) observe(ctx context.Context) error {
	o, err := server.NewObserver(ctx, s.conf, server.ObserverParams{Env: s.params.Source, Watcher: s})
	if err != nil {
		return err
	}
	if err := o.Registry.Check(s.conf.Registry); err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	s.observer, s.engines = o, upstream.New(s.conf.Upstream, upstream.Params{PlainSockets: !s.conf.Listen.RawSockets})
	working, stop := context.WithCancel(context.WithoutCancel(ctx)) // the check that starts them ends first
	s.stop = stop
	s.running.Go(func() { _ = s.engines.Run(working) }) // it ends with its context
	s.running.Go(func() {
		if err := o.Run(working); err != nil {
			s.mu.Lock()
			s.failure = err
			s.mu.Unlock()
		}
	})
	return nil
}

// close ends the parts that observe started.
func (s *setup) close() {
	s.stop()
	s.running.Wait()
	s.client.CloseIdleConnections()
}

// Stored counts a rank's events about blocks below the GPU, and records the blocks that it stores while a request is sent.
func (s *setup) Stored(slot replica.Slot, ev *kvblock.Stored) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ev.Tier != kvblock.TierGPU {
		seen := s.lower[slot]
		if seen.events++; len(ev.Tokens) > 0 {
			seen.described++
		}
		s.lower[slot] = seen
	}
	if !s.keeping || len(s.stored[slot]) >= maxKept {
		return
	}
	one := *ev
	one.Hashes, one.Tokens = slices.Clone(ev.Hashes), slices.Clone(ev.Tokens)
	s.stored[slot] = append(s.stored[slot], one)
}

// probe returns a replica's answer to each question of a probe, asked once.
func (s *setup) probe(ctx context.Context, r *replica.Replica) registry.Examination {
	s.mu.Lock()
	ask := s.probes[r.ID]
	if ask == nil {
		ask = sync.OnceValue(func() registry.Examination {
			e, known := s.observer.Registry.Examine(ctx, r.ID)
			if !known {
				e.HealthError = fmt.Errorf("its source no longer lists it")
			}
			return e
		})
		s.probes[r.ID] = ask
	}
	s.mu.Unlock()
	return ask()
}

// measured returns a replica's metrics, asked once.
func (s *setup) measured(ctx context.Context, r *replica.Replica) (enginestats.Examination, error) {
	s.mu.Lock()
	ask := s.metrics[r.ID]
	if ask == nil {
		ask = sync.OnceValues(func() (enginestats.Examination, error) { return s.observer.Stats.Examine(ctx, r) })
		s.metrics[r.ID] = ask
	}
	s.mu.Unlock()
	return ask()
}

// each asks the same of every replica that no earlier check has lost, at the same time.
func (in scope) each(do func(r *replica.Replica) []Finding) []Finding {
	list := make([][]Finding, len(in.replicas))
	var running sync.WaitGroup
	for i, r := range in.replicas {
		if why, lost := in.lost[string(r.ID)]; lost {
			list[i] = []Finding{blockedBy(string(r.ID), why)}
			continue
		}
		running.Go(func() { list[i] = do(r) })
	}
	running.Wait()
	return slices.Concat(list...)
}

// left are the replicas that no earlier check has lost.
func (in scope) left() []*replica.Replica {
	return slices.DeleteFunc(slices.Clone(in.replicas), func(r *replica.Replica) bool {
		_, lost := in.lost[string(r.ID)]
		return lost
	})
}

// rankName names a rank: as its replica, with a number where there are several.
func rankName(r *replica.Replica, rank int) string {
	if len(r.Slots) < 2 {
		return string(r.ID)
	}
	return fmt.Sprintf("%s/%d", r.ID, rank)
}

// pools groups replicas by the base model that they list first. Names are in order.
func pools(list []*replica.Replica, models func(*replica.Replica) []replica.Model) (names []string, of map[string][]*replica.Replica) {
	of = map[string][]*replica.Replica{}
	for _, r := range list {
		for _, m := range models(r) {
			if m.Parent == "" {
				of[m.ID] = append(of[m.ID], r)
				break
			}
		}
	}
	for name := range of {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, of
}

// wait calls done until it is true or ctx ends, and reports whether it became true.
func wait(ctx context.Context, done func() bool) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if done() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// bare is a replica's address without its scheme's slashes, for messages.
func bare(err error) string { return strings.TrimPrefix(err.Error(), "probe: ") }

// each calls do for 0 to n-1 at the same time.
func each(n int, do func(i int)) {
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { do(i) })
	}
	running.Wait()
}
