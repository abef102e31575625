package registry

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/sleep"
)

// minProbeGap is the time between probes that other parts request.
const minProbeGap = 100 * time.Millisecond

// probing is the common part of a registry's probers.
type probing struct {
	settings *settings
	client   *http.Client
	log      *slog.Logger
	metrics  *metrics
	turns    chan struct{} // one token per probe under way
	doubting chan struct{} // the same for replicas with a failed last probe: hanging probes take no turn of a healthy replica
}

// prober watches one replica from a goroutine of its own.
type prober struct {
	asker  asker
	pulse  *pulse
	pauses pauseProbe
	cancel context.CancelFunc
	kick   chan struct{}
	renew  chan struct{} // forget the old engine's reports
}

func newProber(shared *probing, spec Spec, access credentials, pulse *pulse, cancel context.CancelFunc) *prober {
	return &prober{
		asker: asker{probing: shared, spec: spec, access: access},
		pulse: pulse, cancel: cancel, kick: make(chan struct{}, 1), renew: make(chan struct{}, 1),
	}
}

func (p *prober) stop() { p.cancel() }

// wake requests a probe at once.
func (p *prober) wake() { signal(p.kick) }

// forget makes the next probe read everything again.
func (p *prober) forget() { signal(p.renew) }

// ask returns an asker for another goroutine.
func (p *prober) ask() *asker {
	return &asker{probing: p.asker.probing, spec: p.asker.spec, access: p.asker.access}
}

// run probes until ctx ends: at a jittered interval while all is well, soon again while a failure
// waits for confirmation, ever more rarely while the replica stays down.
func (p *prober) run(ctx context.Context, report func(result)) {
	shared := p.asker.probing
	var s schedule
	timer := time.NewTimer(time.Duration(rand.Int64N(int64(min(shared.settings.now().Probe.Interval, 100*time.Millisecond)) + 1)))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-p.kick:
			if !sleep.For(ctx, minProbeGap-time.Since(s.last)) {
				return
			}
		}
		select {
		case <-p.renew:
			s.forget()
			p.pauses.forget()
		default:
		}
		turns := shared.turns
		if s.fails > 0 {
			turns = shared.doubting
		}
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		res := p.asker.probe(ctx, p.pulse, s.dues(now))
		if s.asksSources(res, now) {
			res.sources = p.asker.sources(ctx)
		}
		if res.err == nil {
			p.pauses.look(ctx, &p.asker, p.pulse)
		} else {
			p.pauses.forget() // it may return as another process
			p.pulse.paused.Store(false)
		}
		<-turns
		if ctx.Err() != nil {
			return
		}
		shared.metrics.probed(res)
		wait := s.note(res, now, &shared.settings.now().Probe)
		if !res.own {
			report(res)
		}
		timer.Reset(wait)
	}
}
