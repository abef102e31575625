package enginesim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvpilot/kvpilot/sim/enginesim/core"
)

// Params are an Engine's surroundings.
type Params struct {
	// HTTP serves the API.
	HTTP net.Listener
	// Events and Replays have a listener for each rank, or none at all.
	Events, Replays []net.Listener
	// Log may be nil.
	Log *slog.Logger
}

// Engine is a simulated replica.
type Engine struct {
	dialect
	log *slog.Logger

	http            *relay
	events, replays []*relay
	faults          faultBox
	records         recordBox
	restarts        chan time.Duration
	life            atomic.Pointer[life]
	lives           atomic.Uint64
	ids             atomic.Uint64
	salt            uint64 // keeps the ids apart from other engines' ids
}

// New checks the configuration and returns an Engine; Run starts it.
func New(cfg Config, p Params) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("simulated replica: %w", err)
	}
	v, err := parseVersion(cfg.Version)
	if err != nil {
		return nil, err
	}
	if p.HTTP == nil {
		return nil, errors.New("simulated replica: no listener for HTTP")
	}
	if n := len(p.Events); n != 0 && n != cfg.Ranks {
		return nil, fmt.Errorf("simulated replica: %d event listeners for %d ranks", n, cfg.Ranks)
	}
	if n := len(p.Replays); n != 0 && n != len(p.Events) {
		return nil, fmt.Errorf("simulated replica: %d replay listeners for %d event listeners", n, len(p.Events))
	}
	e := &Engine{
		dialect: dialect{cfg: cfg, features: featuresOf(v, cfg.Version), adapters: &adapters{}}, log: p.Log,
		http: newRelay(p.HTTP), restarts: make(chan time.Duration, 1), salt: rand.Uint64(),
	}
	if e.cfg.Vocabulary == nil {
		e.cfg.Vocabulary = vocabulary{}
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	for _, ln := range p.Events {
		e.events = append(e.events, newRelay(ln))
	}
	for _, ln := range p.Replays {
		e.replays = append(e.replays, newRelay(ln))
	}
	return e, nil
}

// Run serves until ctx ends.
func (e *Engine) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, r := range e.relays() {
		group.Go(func() error { return r.run(ctx) })
	}
	group.Go(func() error { return e.live(ctx) })
	return group.Wait()
}

func (e *Engine) relays() []*relay {
	return append(append([]*relay{e.http}, e.events...), e.replays...)
}

// live begins one life after the other until ctx ends.
func (e *Engine) live(ctx context.Context) error {
	for {
		lifeCtx, die := context.WithCancel(ctx)
		l := newLife(e, e.lives.Add(1))
		e.life.Store(l)
		ended := make(chan error, 1)
		go func() { ended <- l.run(lifeCtx) }()
		var down time.Duration
		select {
		case down = <-e.restarts:
		case <-ctx.Done():
		case err := <-ended:
			die()
			return err
		}
		e.life.Store(nil)
		for _, r := range e.relays() {
			r.mu.Lock()
			r.now = nil
			r.mu.Unlock()
		}
		die()
		if err := <-ended; err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(down):
		}
	}
}

// Restart kills the engine's process, so to say: every connection is cut, the cache is gone,
// event numbers start from zero. It comes back after down.
func (e *Engine) Restart(down time.Duration) {
	select {
	case e.restarts <- down:
	default: // one is under way already
	}
}

// ResetPrefixCache empties the cache of all ranks; false when one was in use.
func (e *Engine) ResetPrefixCache() bool {
	l := e.life.Load()
	if l == nil {
		return false
	}
	ok := true
	for _, c := range l.cores {
		ok = c.Reset() && ok
	}
	return ok
}

// SetSpeed changes the speed-up of the modelled time.
func (e *Engine) SetSpeed(speed float64) {
	if l := e.life.Load(); l != nil && speed > 0 {
		for _, c := range l.cores {
			c.SetSpeed(speed)
		}
	}
}

// Stats returns each rank's load; empty between lives.
func (e *Engine) Stats() []core.Stats {
	l := e.life.Load()
	if l == nil {
		return nil
	}
	list := make([]core.Stats, 0, len(l.cores))
	for _, c := range l.cores {
		list = append(list, c.Stats())
	}
	return list
}
