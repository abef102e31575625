package remote

import (
	"context"
	"sync"
	"time"
)

// probesAtOnce bounds the probes that run side by side.
const probesAtOnce = 8

// Run probes endpoints and forgets unused ones until ctx ends; then it waits for running work.
func (p *Pool) Run(ctx context.Context) error {
	defer p.keepConnections(ctx)()
	defer p.wg.Wait()
	period := p.cfg.HealthPeriod
	if period <= 0 {
		period = max(p.cfg.TTL/4, time.Second)
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			p.metrics.Expired.Add(ctx, int64(p.table.expire(time.Now())))
			if p.cfg.HealthPeriod > 0 {
				p.probe(ctx)
			}
		}
	}
}

// keepConnections closes connections that stay unused, until the returned function closes all of them.
func (p *Pool) keepConnections(ctx context.Context) (shut func()) {
	if p.conns == nil {
		return func() {}
	}
	kept, end := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { _ = p.conns.Run(kept) }) // its result is always nil
	return func() { end(); wg.Wait() }
}

// probe asks every endpoint that was not used since the last round, has an open breaker or is left alone,
// for the ids of an empty text. A probe is no use: it does not keep an endpoint from expiring.
func (p *Pool) probe(ctx context.Context) {
	now := time.Now()
	var wg sync.WaitGroup
	turns := make(chan struct{}, probesAtOnce)
	for _, e := range *p.table.live.Load() {
		cools := e.coolTill.Load() > now.UnixNano()
		if !e.isOpen() && !cools && now.UnixNano()-e.lastUsed.Load() < int64(p.cfg.HealthPeriod) {
			continue
		}
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			asked, cancel := context.WithTimeout(ctx, min(p.cap(), 2*time.Second))
			defer cancel()
			start := time.Now()
			pass, ok := e.breaker.Allow(e.id)
			if !ok {
				return
			}
			_, err := p.client.ask(asked, e, &Job{Op: opProbe}, false)
			p.judge(ctx, e, nil, err, pass, time.Since(start))
			if err == nil {
				e.coolTill.Store(0)
			}
			p.metrics.observeCall(ctx, e, callLabels{"probe", outcomeOf(err)}, time.Since(start))
		})
	}
	wg.Wait()
}

// endpointStatus is the state of one endpoint.
type endpointStatus struct {
	Replica  string    `json:"replica"`
	Open     bool      `json:"breaker_open"`
	Inflight int       `json:"inflight"`
	LastUsed time.Time `json:"last_used"`
	// Render is yes, no or unknown.
	Render string `json:"render"`
}

// Status lists the known endpoints.
func (p *Pool) Status() []endpointStatus {
	var list []endpointStatus
	for _, e := range *p.table.live.Load() {
		list = append(list, endpointStatus{
			Replica: string(e.id), Open: e.isOpen(), Inflight: int(e.inflight.Load()),
			LastUsed: time.Unix(0, e.lastUsed.Load()),
			Render:   [...]string{"unknown", "yes", "no"}[e.render.Load()],
		})
	}
	return list
}
