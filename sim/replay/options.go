package replay

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Options say what to play: requests before routers and engines, under rules, in runs.
type Options struct {
	Traffic
	Engines
	Routing
	Rules
	Scaling Scaling
	Runs
}

// Traffic is the requests and how fast they come.
type Traffic struct {
	Trace *Trace
	// AtLeast has a trace of fewer requests played again and again, each pass with prefixes of its own,
	// until it has as many; 0 plays it once. Closed loops are always played once.
	AtLeast int
	// Load is the arrival rate as a share of the pooled-cache oracle's saturation rate; Rates, when there
	// are any, are the arrival rates in requests per second instead.
	Load  float64
	Rates []float64
	// Memory, when there are any, are loads of a closed loop by its programs at once instead: by how many times the fleet's memory
	// their contexts take. Programs are such loads by number.
	Memory   []float64
	Programs []int
	// Chats is how many turns of chats per second arrive next to loads by programs at once; 0: none.
	Chats float64
	// Wave changes the arrival rate of open loops, and of the first calls of closed ones, over time.
	Wave Wave
	// Answers are what the router sees of answers.
	Answers Answers
}

// Engines are the modelled replicas and the ways to them.
type Engines struct {
	Replicas int
	Profile  Profile
	// Block is the block size in tokens; the trace's chunks must be a multiple.
	Block    int
	Hardware Hardware
	// Turns are changes of speeds during a run.
	Turns []Turn
	// Lies are what is wrong with the first replicas, in their order; none is nothing.
	Lies []Lie
	// Delays are the times between client, router and engines, Transfers the times of KV cache between two engines.
	Delays    Delays
	Transfers Transfers
	// Tiers are the tiers of KV memory below the replicas' GPUs; the oracle has none.
	Tiers Tiers
}

// Routing is the routers and what they know.
type Routing struct {
	// Routers stand in front of the replicas, and each call goes to one of them at random; 0 is 1. Fleet says how
	// they decide when there are several; empty is FleetAlone. RTT is the round trip between two of them in seconds.
	Routers int
	Fleet   Fleet
	RTT     float64
	// Frontends says what the routers know of a prompt; empty is FrontendsAll.
	Frontends Frontends
	// Beginnings is the share of later turns of a conversation of which the router knows the turn
	// before, Texts the share of requests of which it knows the text alone; the length is estimated then.
	Beginnings, Texts float64
	// Nameless requests say no session: programs are found by their prompts alone.
	Nameless bool
	// NoPrograms has the router hold no programs back that fit in no memory.
	NoPrograms bool
	// NoAdapterNames keeps the adapters of requests from the router.
	NoAdapterNames bool
	// PaceBias multiplies the learned prefill times, EventLoss is the share of KV events lost.
	PaceBias, EventLoss float64
}

// Rules are the policies and their parameters.
type Rules struct {
	// The policies are the product's and Rivals'; the latter have a single router, and of the delays they know those of ids alone.
	Policies []decision.Policy
	// Roles, when there are any, are the divisions of the replicas under which predicted-ttft is played, each with each rule of Splits; no
	// rule is SplitByPrice.
	Roles  []Roles
	Splits []SplitRule
	// Objective and Weights are those of predicted-ttft and of all policies; empty takes the defaults.
	Objective decision.Objective
	Weights   map[string]float64
}

// setups are what is played: each policy, and predicted-ttft under each autoscaler or division of the replicas.
func (o *Options) setups() []ruleset {
	var list []ruleset
	r := &o.Rules
	for _, p := range r.Policies {
		if p == decision.PredictedTTFT && len(o.Scaling.Rules) > 0 {
			for _, rule := range o.Scaling.Rules {
				list = append(list, ruleset{Policy: p, Scale: rule})
			}
			continue
		}
		if p != decision.PredictedTTFT || len(r.Roles) == 0 {
			list = append(list, ruleset{Policy: p})
			continue
		}
		for _, roles := range r.Roles {
			if roles == (Roles{}) || len(r.Splits) == 0 {
				list = append(list, ruleset{Policy: p, Roles: roles, Split: SplitByPrice})
				continue
			}
			for _, split := range r.Splits {
				list = append(list, ruleset{Policy: p, Roles: roles, Split: split})
			}
		}
	}
	return list
}

// Runs are how often and how long the trace is played.
type Runs struct {
	// Seeds is the number of runs per policy; their numbers are averaged.
	Seeds int
	// Goal is the promise that a good answer keeps; the zero value takes DefaultGoal.
	Goal Goal
	// NoSaturation leaves the saturation runs out.
	NoSaturation bool
	// Patience gives a run up when its mean is sure to exceed that many times the oracle's, because
	// the fleet cannot keep up with the load; 0 plays everything to its end.
	Patience float64
	// Workers bounds the runs at once; 0 takes the number of cores.
	Workers int
	// Progress, when set, is called with how many of all runs are done.
	Progress func(done, all int)
}

// FewestRequests is a good AtLeast. A policy that sends cheap requests first leaves the expensive ones for
// the end, and in a short run the end is what is measured.
const FewestRequests = 6000

// enough is the trace played as often as AtLeast takes. Sessions that wait for their own answers are
// left alone: their passes would run at the same time.
func (o *Options) enough() *Trace {
	if o.Trace.Closed {
		return o.Trace
	}
	return o.Trace.repeat((o.AtLeast + len(o.Trace.Calls) - 1) / len(o.Trace.Calls))
}

func (o *Options) check() error {
	var errs []error
	if o.Trace == nil || len(o.Trace.Calls) == 0 {
		errs = append(errs, errors.New("no trace"))
	} else if o.Block < 1 || o.Trace.Chunk%o.Block != 0 {
		errs = append(errs, fmt.Errorf("block size %d does not divide the trace's chunks of %d tokens", o.Block, o.Trace.Chunk))
	}
	if o.Replicas < 1 || o.Replicas > 4096 {
		errs = append(errs, fmt.Errorf("%d replicas: 1 to 4096 are possible", o.Replicas))
	}
	if o.Routers < 0 || o.Routers > 64 {
		errs = append(errs, fmt.Errorf("%d routers: 1 to 64 are possible", o.Routers))
	}
	if o.Fleet != "" && !slices.Contains(Fleets(), o.Fleet) {
		errs = append(errs, fmt.Errorf("unknown fleet %q; known are %v", o.Fleet, Fleets()))
	}
	if o.Frontends != "" && !slices.Contains(FrontendKinds(), o.Frontends) {
		errs = append(errs, fmt.Errorf("unknown kind of frontends %q; known are %v", o.Frontends, FrontendKinds()))
	}
	if o.RTT < 0 || o.RTT > 1 {
		errs = append(errs, fmt.Errorf("round trip %v: must be from 0 to 1 second", o.RTT))
	}
	if o.Load <= 0 || o.Load > 10 {
		errs = append(errs, fmt.Errorf("load %v: above 0, and 1 is the oracle's saturation", o.Load))
	}
	if o.Seeds < 1 {
		errs = append(errs, fmt.Errorf("%d seeds: at least one is needed", o.Seeds))
	}
	errs = append(errs, o.Hardware.check()...)
	for name, share := range map[string]float64{"event loss": o.EventLoss, "known beginnings": o.Beginnings, "known texts": o.Texts} {
		if share < 0 || share > 1 {
			errs = append(errs, fmt.Errorf("share of %s %v: must be from 0 to 1", name, share))
		}
	}
	for _, roles := range o.Roles {
		if err := roles.check(o.Replicas); err != nil {
			errs = append(errs, err)
		}
		if roles != (Roles{}) && o.Routers > 1 {
			errs = append(errs, fmt.Errorf("roles %s: requests are split by a router that decides alone, there are %d", roles, o.Routers))
		}
	}
	for _, split := range o.Splits {
		if !slices.Contains(SplitRules(), split) {
			errs = append(errs, fmt.Errorf("unknown rule of splits %q; known are %v", split, SplitRules()))
		}
	}
	if o.Transfers.Start < 0 || o.Transfers.PerToken < 0 {
		errs = append(errs, errors.New("the times of transfers must not be negative"))
	}
	errs = append(errs, o.Tiers.check(o.Block))
	for _, p := range o.Policies {
		if !p.Known() && !slices.Contains(otherRules(), p) {
			errs = append(errs, fmt.Errorf("unknown policy %q; known are %v, and the rules of other routers %v", p, decision.Policies(), otherRules()))
		}
	}
	errs = append(errs, o.Scaling.check(o))
	return errors.Join(errs...)
}
