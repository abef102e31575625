package remote

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/wire/poison"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

const (
	maxAttempts = 3
	// waitersPerSlot bounds the questions that wait for one replica's turn.
	waitersPerSlot = 32
	retryPause     = 25 * time.Millisecond
	coolOverload   = 250 * time.Millisecond
	coolAuth       = 10 * time.Second
	// mostCool bounds the time for which a replica is not asked, whatever its Retry-After says; a good probe ends it sooner. firstRest is
	// the time for a replica without a tokenizer route, which doubles.
	mostCool  = time.Minute
	firstRest = time.Second
	// hedgeShare of the questions may be asked twice, beyond a small stock for bursts.
	hedgeShare = 0.1
	hedgeStock = 10
)

// Params has the arguments of the code.
type Params struct {
	Scope scope.Scope
	// PlainSockets reads and writes with calls that the scheduler knows of (package socket).
	PlainSockets bool
	// Sender replaces the connections to the replicas; nil makes them.
	Sender Sender
}

// Pool asks engines to tokenize.
type Pool struct {
	cfg     Config
	timeout atomic.Int64 // nanoseconds
	log     *slog.Logger
	client  *client
	conns   *upstream.Client // nil when Params has a Sender
	table   *table
	latency latency
	metrics *metrics
	poison  *poison.Memory
	served  atomic.Int64 // when a tokenizer answered last, in nanoseconds of Unix time
	turn    atomic.Uint64
	credit  atomic.Int64 // hedges that may be made, in thousandths
	wg      sync.WaitGroup
}

// New makes a pool; it opens and starts nothing.
func New(cfg Config, params Params) *Pool {
	p := &Pool{cfg: cfg, log: params.Scope.Log(), table: newTable(cfg), poison: poison.New()}
	p.timeout.Store(int64(cfg.Timeout))
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	to := params.Sender
	if to == nil {
		p.conns = connections(cfg, params.PlainSockets)
		to = p.conns
	}
	p.client = newClient(cfg, to)
	p.metrics = newMetrics(params.Scope.Meters(), func() map[replica.ID]*endpoint { return *p.table.live.Load() })
	p.credit.Store(hedgeStock * 1000)
	return p
}

// SetTimeout puts another cap on one question in force, for questions that begin from now on.
func (p *Pool) SetTimeout(d time.Duration) { p.timeout.Store(int64(d)) }

func (p *Pool) cap() time.Duration { return time.Duration(p.timeout.Load()) }

// outcome is how one attempt ended.
type outcome struct {
	answer *Answer
	err    error
	hedge  bool
	from   *endpoint
}

// Do asks one of the replicas. Errors are *ClientFault (the client's own) or *Fault.
func (p *Pool) Do(ctx context.Context, replicas []*replica.Replica, j *Job) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cap())
	defer cancel()
	d := &dialogue{pool: p, ctx: ctx, replicas: replicas, job: j, results: make(chan outcome, 2*maxAttempts)}
	a, err := d.run()
	d.conclude(err == nil)
	return a, err
}

// dialogue is one question with its retries and its hedge.
type dialogue struct {
	pool     *Pool
	ctx      context.Context //nolint:containedctx // a dialogue lives as long as one call of Do
	replicas []*replica.Replica
	job      *Job
	results  chan outcome
	tried    []*endpoint
	attempts int
	live     int
	doubts   doubts
	once     sync.Once
	name     retry.Origin // set by once
	// refusal is the first answer that the question is wrong.
	refusal outcome
}

func (d *dialogue) run() (*Answer, error) {
	p := d.pool
	if f := d.launch(false); f != nil {
		return nil, f
	}
	p.credit.Store(min(p.credit.Load()+int64(hedgeShare*1000), hedgeStock*1000))
	hedge := time.NewTimer(p.latency.hedgeDelay(d.job.size()))
	defer hedge.Stop()
	var pause <-chan time.Time
	last := &Fault{Kind: KindNoEndpoint}
	for {
		select {
		case <-d.ctx.Done():
			return nil, p.ended(d.ctx)
		case <-hedge.C:
			if d.live == 1 && p.credit.Load() >= 1000 && d.launch(true) == nil {
				p.credit.Add(-1000)
				p.metrics.Hedges.Add(d.ctx, 1)
				span.Note(d.ctx, span.EventHedge, span.Replica.String(d.asked()))
			}
		case <-pause:
			pause = nil
			if f := d.launch(false); f != nil && d.live == 0 {
				return nil, last
			}
		case o := <-d.results:
			d.live--
			if o.err == nil {
				if o.hedge {
					p.metrics.HedgesWon.Add(d.ctx, 1)
				}
				d.outvoted()
				return o.answer, nil
			}
			if !errors.As(o.err, &last) && d.refusal.err == nil { // the client's own fault, if another replica agrees
				if d.refusal = o; d.live > 0 {
					continue
				}
				if d.launch(false) == nil {
					p.metrics.Retries.Add(d.ctx, 1)
					continue
				}
			}
			if d.refusal.err != nil && d.live == 0 {
				return nil, d.refusal.err
			}
			if d.live > 0 {
				continue
			}
			wait, again := d.again(last)
			if !again {
				return nil, last
			}
			p.metrics.Retries.Add(d.ctx, 1)
			span.Note(d.ctx, span.EventRetry, span.Reason.String(string(last.Kind)))
			pause = time.After(wait)
		}
	}
}

// outvoted notes that a replica refused a question that another one answers: it is not asked for a while.
func (d *dialogue) outvoted() {
	e := d.refusal.from
	if e == nil {
		return
	}
	e.tally.failure(KindRefused)
	d.pool.log.Warn("replica refuses to tokenize what another one tokenizes", "replica", string(e.id), "error", d.refusal.err)
	e.rest(time.Now())
}

// again says whether to try once more, and after which pause.
func (d *dialogue) again(f *Fault) (time.Duration, bool) {
	if !f.isRetryable() || d.attempts >= maxAttempts || d.ctx.Err() != nil || !d.worthRetry(f) {
		return 0, false
	}
	if e, _ := d.pool.pick(d.replicas, d.tried); e != nil {
		return 0, true // an endpoint that was not asked yet
	}
	if f.Kind != KindConnect && f.Kind != KindStatus {
		return 0, false
	}
	wait := retryPause << d.attempts
	if f.RetryAfter > 0 {
		wait = f.RetryAfter
	}
	if deadline, ok := d.ctx.Deadline(); !ok || wait > time.Until(deadline)/2 || wait > time.Second {
		return 0, false
	}
	d.tried = nil
	return wait + time.Duration(rand.Int64N(int64(retryPause))), true
}

// launch starts an attempt at the least loaded endpoint that was not tried.
func (d *dialogue) launch(hedge bool) *Fault {
	e, f := d.pool.pick(d.replicas, d.tried)
	if e == nil {
		return f
	}
	d.tried = append(d.tried, e)
	d.attempts++
	d.live++
	e.inflight.Add(1)
	d.pool.wg.Go(func() {
		defer e.inflight.Add(-1)
		answer, err := d.pool.attempt(d.ctx, e, d, d.parent(e))
		d.results <- outcome{answer: answer, err: err, hedge: hedge, from: e}
	})
	return nil
}

// asked names the replica that was asked last.
func (d *dialogue) asked() string { return string(d.tried[len(d.tried)-1].id) }

// parent is the base model's name where the endpoint only knows that one: the Rust front end
// refuses adapters.
func (d *dialogue) parent(e *endpoint) string {
	if !e.rust {
		return ""
	}
	for _, r := range d.replicas {
		if r.ID == e.id {
			m, _ := r.Serves(d.job.Model)
			return m.Parent
		}
	}
	return ""
}

// ended names the end of the question's time.
func (p *Pool) ended(ctx context.Context) *Fault {
	if errors.Is(ctx.Err(), context.Canceled) {
		return &Fault{Kind: KindCancelled, Cause: ctx.Err()}
	}
	return &Fault{Kind: KindTimeout, Cause: ctx.Err()}
}

// pick returns the usable endpoint with the fewest questions, or why there is none.
func (p *Pool) pick(replicas []*replica.Replica, tried []*endpoint) (*endpoint, *Fault) {
	now := time.Now()
	var best *endpoint
	var bestLoad int32
	why := KindNoEndpoint
	n := len(replicas)
	if n == 0 {
		return nil, &Fault{Kind: why}
	}
	start := int(p.turn.Add(1) % uint64(n))
	for i := range n {
		r := replicas[(start+i)%n]
		if r.State != replica.StateReady && r.State != replica.StateDraining || r.IsForeign() {
			continue
		}
		e := p.table.get(r, now)
		if e == nil || slices.ContainsFunc(tried, func(t *endpoint) bool { return t.id == e.id }) {
			continue
		}
		if !e.usable(now) {
			why = KindOpen
			continue
		}
		load := e.inflight.Load()
		if r.State == replica.StateDraining {
			load += int32(p.cfg.Concurrency)
		}
		if best == nil || load < bestLoad {
			best, bestLoad = e, load
		}
	}
	if best == nil {
		return nil, &Fault{Kind: why}
	}
	if int(best.inflight.Load()) >= p.cfg.Concurrency*(1+waitersPerSlot) {
		return nil, &Fault{Kind: KindBusy}
	}
	return best, nil
}
