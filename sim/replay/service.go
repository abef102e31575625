package replay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
)

// Fleet says how several routers decide.
type Fleet string

const (
	// FleetAlone has each router decide by what it sees itself: its own requests, the KV events, and the
	// engines' own reports.
	FleetAlone Fleet = "alone"
	// FleetDecider has all routers ask one of them, as routers that have joined a fleet do.
	FleetDecider Fleet = "decider"
)

// Fleets lists them.
func Fleets() []Fleet { return []Fleet{FleetAlone, FleetDecider} }

// service spreads the calls over the routers as a Kubernetes Service does: each call goes to one of them at random.
type service struct {
	sim     *sim
	routers []*router
	of      []*router // of each call that has arrived
	dice    *rand.Rand
}

func newService(s *sim, cfg chooser.Config, j *job) (*service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	v := &service{sim: s, of: make([]*router, len(s.trace.Calls)), dice: rand.New(rand.NewPCG(j.seed, 13))}
	calls := newCalls(len(s.trace.Calls))
	for n := range max(1, j.options.Routers) {
		r, err := newRouter(s, cfg, j, n, calls)
		if err != nil {
			return nil, err
		}
		v.routers = append(v.routers, r)
	}
	if len(v.routers) > 1 || j.options.Answers.Whole || j.options.Profile.Adapters.Slots > 0 && !j.options.NoAdapterNames {
		for _, r := range v.routers {
			r.watch()
		}
	}
	if j.options.Fleet == FleetDecider {
		v.join()
	}
	return v, nil
}

func (v *service) arrive(call int) {
	r := v.routers[0]
	if n := len(v.routers); n > 1 {
		r = v.routers[v.dice.IntN(n)]
	}
	v.of[call] = r
	r.arrive(call)
}

func (v *service) firstToken(a *attempt) { v.of[a.call].firstToken(a) }

func (v *service) progress(a *attempt, tokens int) { v.of[a.call].progress(a, tokens) }

func (v *service) finished(a *attempt) { v.of[a.call].finished(a) }

// changed gives every router the events: each has its own connection to the engine.
func (v *service) changed(e int, events []kvEvent) {
	for _, r := range v.routers[1:] {
		r.changed(e, slices.Clone(events))
	}
	v.routers[0].changed(e, events)
}

// err is what went wrong in any router.
func (v *service) err() error {
	var errs []error
	for _, r := range v.routers {
		errs = append(errs, r.err)
	}
	return errors.Join(errs...)
}

// alone is the share of calls that a router decided because the decider did not answer.
func (v *service) alone() float64 {
	n := 0
	for _, r := range v.routers {
		n += r.alone
	}
	return float64(n) / float64(len(v.of))
}

// accuracy has the predicted over the actual time to the first token of each answer.
func (v *service) accuracy() []float64 {
	var all []float64
	for _, r := range v.routers {
		all = append(all, r.accuracy...)
	}
	return all
}
