package enginestats

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
)

// Poller polls replicas for their load. New makes one; Run runs it.
type Poller struct {
	config  atomic.Pointer[Config]
	params  Params
	log     *slog.Logger
	metrics *metrics
	asking  chan struct{} // one token per running poll
	wake    chan struct{}

	mu      sync.Mutex
	targets map[replica.ID]*target   // guarded by mu
	bySlot  map[replica.Slot]*target // guarded by mu

	table atomic.Pointer[[]*account]
}

// account holds the newest statistics of one slot.
type account struct{ stats atomic.Pointer[Stats] }

// target is one replica with the slots of its ranks.
type target struct {
	replica atomic.Pointer[replica.Replica]
	slots   map[int]replica.Slot // by rank; guarded by the poller's mu
	cancel  context.CancelFunc   // nil until its goroutine runs; guarded by the poller's mu
	kick    chan struct{}        // a poll is wanted now

	// The fields below belong to the goroutine that polls.
	learned Learned
	began   time.Time
	counted uint64 // tokens counted by the engine, to notice that it restarted
	senders map[replica.Slot]*Senders
}

// New returns a poller without replicas. config must be valid.
func New(config Config, params Params) *Poller {
	if params.Client == nil {
		params.Client = newClient()
	}
	p := &Poller{
		params: params, log: params.Scope.Log(),
		asking: make(chan struct{}, config.Concurrency), wake: make(chan struct{}, 1),
		targets: map[replica.ID]*target{}, bySlot: map[replica.Slot]*target{},
	}
	p.config.Store(&config)
	p.table.Store(&[]*account{})
	p.metrics = newMetrics(params.Scope.Meters(), p)
	return p
}

// Add starts to poll for a rank.
func (p *Poller) Add(slot replica.Slot, r *replica.Replica, rank int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.targets[r.ID]
	if t == nil || t.replica.Load().URL != r.URL || t.replica.Load().Metrics() != r.Metrics() || t.slots[rank] != slot && t.has(rank) {
		t = &target{
			slots: map[int]replica.Slot{}, kick: make(chan struct{}, 1), senders: map[replica.Slot]*Senders{},
		}
		t.replica.Store(r)
		if old := p.targets[r.ID]; old != nil && old.cancel != nil {
			old.cancel()
		}
		p.targets[r.ID] = t
	}
	t.slots[rank] = slot
	p.bySlot[slot] = t
	p.setAccount(slot, new(account))
	p.nudge()
}

// Renew applies how a replica is to be polled: its key and certificates may change while its ranks stay.
func (p *Poller) Renew(r *replica.Replica) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.targets[r.ID]
	if t == nil {
		return
	}
	if old := t.replica.Load(); old.URL == r.URL && (old.Metrics() != r.Metrics() || old.APIKey != r.APIKey || old.TLS != r.TLS) {
		t.replica.Store(r)
	}
}

// Update puts a new interval and a new time limit in force. The other fields of next have no effect.
func (p *Poller) Update(next Config) error {
	if err := next.Validate(); err != nil {
		return err
	}
	merged := *p.config.Load()
	merged.Interval, merged.Timeout = next.Interval, next.Timeout
	if err := merged.Validate(); err != nil {
		return err
	}
	p.config.Store(&merged)
	return nil
}

func (t *target) has(rank int) bool {
	_, ok := t.slots[rank]
	return ok
}

// Remove stops polling for a rank.
func (p *Poller) Remove(slot replica.Slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.bySlot[slot]
	if t == nil {
		return
	}
	delete(p.bySlot, slot)
	p.setAccount(slot, nil)
	maps.DeleteFunc(t.slots, func(_ int, s replica.Slot) bool { return s == slot })
	if len(t.slots) > 0 {
		return
	}
	if t.cancel != nil {
		t.cancel()
	}
	if p.targets[t.replica.Load().ID] == t {
		delete(p.targets, t.replica.Load().ID)
	}
}

// names returns the ranks that are polled.
func (p *Poller) names() map[replica.Slot]replica.Rank {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := make(map[replica.Slot]replica.Rank, len(p.bySlot))
	for _, t := range p.targets {
		for rank, slot := range t.slots {
			names[slot] = replica.Rank{Replica: t.replica.Load().ID, Index: rank}
		}
	}
	return names
}

// setAccount replaces the account of slot in a copy of the table. p.mu is held.
func (p *Poller) setAccount(slot replica.Slot, a *account) {
	old := *p.table.Load()
	table := make([]*account, max(len(old), int(slot)+1))
	copy(table, old)
	table[slot] = a
	p.table.Store(&table)
}

func (p *Poller) account(slot replica.Slot) *account {
	table := *p.table.Load()
	if int(slot) >= len(table) {
		return nil
	}
	return table[slot]
}

// Stats returns the last report of the rank's engine; not ok when it has not reported yet.
func (p *Poller) Stats(slot replica.Slot) (Stats, bool) {
	if s := p.Last(slot); s != nil {
		return *s, true
	}
	return Stats{}, false
}

// Last is Stats without a copy, for each rank of each choice: nil when there is none. It is read-only.
func (p *Poller) Last(slot replica.Slot) *Stats {
	if a := p.account(slot); a != nil {
		return a.stats.Load()
	}
	return nil
}

// Ask polls a rank's replica now, before it is due.
func (p *Poller) Ask(slot replica.Slot) {
	p.mu.Lock()
	t := p.bySlot[slot]
	p.mu.Unlock()
	if t == nil {
		return
	}
	select {
	case t.kick <- struct{}{}:
	default: // asked already
	}
}

func (p *Poller) nudge() {
	select {
	case p.wake <- struct{}{}:
	default: // it is awake already
	}
}

// Run polls until ctx ends.
func (p *Poller) Run(ctx context.Context) error {
	var asking sync.WaitGroup
	for {
		p.start(ctx, &asking)
		select {
		case <-ctx.Done():
			asking.Wait()
			p.params.Client.CloseIdleConnections()
			return nil
		case <-p.wake:
		}
	}
}

// start starts the goroutine of each target without one.
func (p *Poller) start(ctx context.Context, asking *sync.WaitGroup) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.targets {
		if t.cancel != nil {
			continue
		}
		own, cancel := context.WithCancel(ctx)
		t.cancel = cancel
		asking.Go(func() { p.poll(own, t) })
	}
}

// poll asks one replica until ctx ends, less often while it does not answer.
func (p *Poller) poll(ctx context.Context, t *target) {
	wait := time.Duration(rand.Int64N(int64(min(p.config.Load().Interval, 100*time.Millisecond)) + 1))
	failed := 0
	for {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-t.kick:
			timer.Stop()
		}
		select {
		case p.asking <- struct{}{}:
		case <-ctx.Done():
			return
		}
		err := p.ask(ctx, t)
		<-p.asking
		if ctx.Err() != nil {
			return
		}
		p.metrics.polled(err)
		if err == nil {
			failed = 0
		} else {
			failed++
			p.log.Debug("engine statistics could not be read", "replica", t.replica.Load().ID, "error", err)
		}
		wait = p.config.Load().Interval << min(failed, 4)
		wait += time.Duration(rand.Int64N(int64(wait/5)+1)) - wait/10
	}
}

// ask polls once.
func (p *Poller) ask(ctx context.Context, t *target) error {
	p.noteOwn(t)
	page, err := p.fetch(ctx, t.replica.Load())
	if err != nil {
		return err
	}
	p.apply(t, page, time.Now())
	return nil
}

// fetch reads a replica's metrics.
func (p *Poller) fetch(ctx context.Context, r *replica.Replica) (*page, error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Load().Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(tlspeer.With(ctx, r.TLS), http.MethodGet, r.Metrics()+p.config.Load().Path, nil)
	if err != nil {
		return nil, fmt.Errorf("poll: %w", err)
	}
	if !r.APIKey.IsEmpty() {
		req.Header.Set("Authorization", "Bearer "+r.APIKey.Reveal())
	}
	resp, err := p.params.Client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("poll: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("poll: status %d", resp.StatusCode)
	}
	body := &io.LimitedReader{R: resp.Body, N: int64(p.config.Load().MaxBytes) + 1}
	page, err := scan(body)
	if body.N <= 0 {
		return nil, fmt.Errorf("poll: the answer is above %d bytes", p.config.Load().MaxBytes)
	}
	if err != nil {
		return nil, err
	}
	page.ahead = ahead(resp, time.Now())
	return page, nil
}
