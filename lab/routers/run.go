package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvpilot/kvpilot/lab/install"
	"github.com/kvpilot/kvpilot/server/kit/sleep"
	"github.com/kvpilot/kvpilot/sim/replay"
)

// cell is a trace at a load: the unit in which all routers are compared.
type cell struct {
	Trace string  `json:"trace"`
	Load  float64 `json:"load"`
	// Rate is in requests per second, Capacity the rate of these requests that a fleet with one pooled cache can serve.
	// In a closed loop of so many Agents the rate is their demand if answers come without delay.
	Rate     float64 `json:"rate"`
	Capacity float64 `json:"capacity,omitempty"`
	Requests int     `json:"requests"`
	Agents   int     `json:"agents,omitempty"`
	Replay   *played `json:"replay,omitempty"`
	Results  []*rows `json:"results"`
	// Setting says how the cell was played, in a report made of several.
	Setting string `json:"-"`

	trace *trace
	times []float64
}

// rows are one router's runs in a cell.
type rows struct {
	Router string `json:"router"`
	// Product says that it is kvpilot.
	Product bool       `json:"kvpilot,omitempty"`
	Runs    []*figures `json:"runs"`
	Mean    *figures   `json:"mean"`
	Error   string     `json:"error,omitempty"`
}

// run prepares everything, plays, and reports.
func run(ctx context.Context, o *options) error {
	binary, err := buildKvpilot(ctx, o)
	if err != nil {
		return err
	}
	subjects, skipped, err := o.prepare(ctx, binary)
	if err != nil {
		return err
	}
	rep := newReport(ctx, o, binary, subjects, skipped)
	if err := rep.cells(o, subjects); err != nil {
		return err
	}
	for round := range o.rounds {
		if err := rep.round(ctx, o, subjects, binary, round); err != nil {
			return errors.Join(err, rep.finish(o)) // earlier results are reported
		}
	}
	return rep.finish(o)
}

// cells makes the cells; an unavailable trace is reported and left out.
func (r *report) cells(o *options, subjects []*subject) error {
	for _, name := range o.traces {
		for _, load := range o.loads {
			c, err := o.cell(name, load)
			if errors.Is(err, install.ErrAbsent) {
				r.Skipped = append(r.Skipped, name+": "+err.Error())
				break
			}
			if err != nil {
				return fmt.Errorf("trace %s: %w", name, err)
			}
			if o.replay {
				if c.Replay, err = o.play(c); err != nil {
					r.Skipped = append(r.Skipped, fmt.Sprintf("replay of %s at %.2f: %v", name, load, err))
				}
			}
			for _, s := range subjects {
				c.Results = append(c.Results, &rows{Router: s.name, Product: s.product})
			}
			r.Cells = append(r.Cells, c)
		}
	}
	return nil
}

// round plays every cell through every router once.
func (r *report) round(ctx context.Context, o *options, subjects []*subject, binary string, round int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(o.parallel)
	var mu sync.Mutex
	for _, c := range r.Cells {
		for i := range subjects {
			// Another order in each round: the sequence does not decide.
			n := (i + round) % len(subjects)
			row := c.Results[n]
			group.Go(func() error {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				f, err := o.measure(ctx, c, subjects[n], binary, round)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					row.Error = err.Error()
					fmt.Printf("%s, %s at %.2f: %v\n", row.Router, c.Trace, c.Load, err)
					return ctx.Err()
				}
				row.Runs = append(row.Runs, f)
				fmt.Printf("round %d  %-12s %4.2f  %s\n", round+1, c.Trace, c.Load, f.line(row.Router))
				return r.write()
			})
		}
	}
	return errors.Join(group.Wait(), r.write())
}

// prepare installs the routers; unavailable ones are reported with the reason.
func (o *options) prepare(ctx context.Context, binary string) (list []*subject, skipped []string, err error) {
	for _, name := range o.routers {
		s, err := o.parse(name, binary)
		if err != nil {
			return nil, nil, err
		}
		s.version, err = s.maker.install(ctx, o)
		if errors.Is(err, install.ErrAbsent) {
			skipped = append(skipped, name+": "+err.Error())
			fmt.Printf("SKIPPED %s: %v\n", name, err)
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		list = append(list, s)
	}
	if len(list) == 0 {
		return nil, nil, errors.New("no router to compare")
	}
	return list, skipped, nil
}

// longest is how many calls of a trace are looked at when the fleet's capacity is estimated.
const longest = 6000

// cell finds how many requests fit into the time and at which rate they are sent.
func (o *options) cell(name string, load float64) (*cell, error) {
	t, err := openTrace(name, longest, o.seed)
	if err != nil {
		return nil, err
	}
	c := &cell{Trace: t.Name, Load: load, Rate: o.atRate, trace: t}
	if t.Closed {
		err = o.closed(c, name == "agents")
	} else if load > 0 {
		// How fast the fleet is depends on which requests it gets: first on all, then on the ones that fit.
		for range 4 {
			if c.Capacity, err = o.capacity(c.trace.Trace, replay.FewestRequests); err != nil {
				break
			}
			c.Rate = load * c.Capacity
			c.trace = t.cut(max(1, int(c.Rate*o.seconds)))
		}
	}
	if err != nil {
		return nil, err
	}
	if c.Rate <= 0 {
		return nil, errors.New("no rate: give -loads or -rate")
	}
	if !t.Closed {
		c.trace = t.cut(max(1, int(c.Rate*o.seconds)))
	}
	c.Requests = len(c.trace.Calls)
	c.times = c.trace.times(c.Rate, o.seed)
	return c, nil
}

// closed sets a closed loop up: as many agents as bring the load when answers come without delay. Of a
// file the sessions are played as they are.
func (o *options) closed(c *cell, made bool) error {
	var err error
	if c.Capacity, err = o.capacity(c.trace.opened(), 0); err != nil {
		return err
	}
	if c.Load > 0 {
		c.Rate = c.Load * c.Capacity
	}
	if !made {
		return nil
	}
	c.Agents = max(1, int(math.Round(c.Rate*c.trace.cycle(o.power()))))
	c.trace = agentTrace(c.Agents, max(c.Agents, int(c.Rate*o.seconds)), o.seed)
	return nil
}

// settle is how long a router has to look at the replicas before the first request.
const settle = 1500 * time.Millisecond

// measure plays a cell once through one router.
func (o *options) measure(ctx context.Context, c *cell, s *subject, binary string, round int) (*figures, error) {
	dir, err := folder(o.out, fmt.Sprintf("%s-%.2f", c.Trace, c.Load), fmt.Sprintf("%s-%d", fileName(s.name), round+1))
	if err != nil {
		return nil, err
	}
	f, err := startFleet(ctx, o, binary, dir)
	if err != nil {
		return nil, err
	}
	defer f.stop()
	r, err := s.start(ctx, f, dir)
	if err != nil {
		return nil, err
	}
	defer r.stop()
	sleep.For(ctx, settle)
	p := &player{
		trace: c.trace, times: c.times, api: o.api, session: o.session, unstreamed: o.unstreamed, urls: r.urls(),
		limit: time.Duration((o.seconds + o.drain) * float64(time.Second)),
	}
	w := watch(o, f, r)
	outcomes := p.play(ctx)
	result := summarize(c.trace, outcomes)
	if err := w.end(ctx, result); err != nil {
		return nil, err
	}
	if err := r.died(); err != nil {
		return nil, err
	}
	r.stop()
	if result.Told, err = r.forecast(o.replicas); err != nil {
		return nil, err
	}
	return result, nil
}

// fileName makes a name fit for a folder.
func fileName(name string) string {
	b := []byte(name)
	for i, c := range b {
		if c == ':' || c == '@' || c == '/' {
			b[i] = '_'
		}
	}
	return string(b)
}
