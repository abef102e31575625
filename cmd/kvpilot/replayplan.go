package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/kvpilot/kvpilot/sim/replay"
)

// planFlags are the arguments of replay --plan.
type planFlags struct {
	wanted bool
	ask    replay.Question
}

// The defaults of a plan, which takes more runs than a comparison of policies and needs less of each.
const (
	planRequests = 3000
	planBlock    = 512
)

func (p *planFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&p.wanted, "plan", false, fmt.Sprintf(
		"instead of comparing policies, search for the highest load at which one pool, both and every fixed division of the replicas keep the goal, and count the replicas for the load of --rate; unless they are given, there are %d requests, blocks of %d tokens and one seed",
		planRequests, planBlock))
	flags.Float64Var(&p.ask.Share, "share", 0.99, "with --plan, the share of the answers that must be good")
	flags.Float64Var(&p.ask.Step, "step", replay.DefaultStep, "with --plan, how far two loads of the search lie apart: 0.05 is 5 %")
	flags.IntVar(&p.ask.Most, "most-replicas", 0, "with --plan and --rate, the largest number of replicas to try; 0: four times --replicas")
	flags.IntVar(&p.ask.Curve, "curve", 6, "with --plan, the number of loads that every arrangement is played at, next to those of the search")
}

// defaults sets what the operator did not.
func (p *planFlags) defaults(f *replayFlags, flags *pflag.FlagSet) error {
	if !p.wanted {
		for _, name := range []string{"share", "step", "most-replicas", "curve"} {
			if flags.Changed(name) {
				return fmt.Errorf("--%s has a meaning with --plan only", name)
			}
		}
		return nil
	}
	for _, name := range []string{"policies", "roles", "split", "load", "memory", "programs", "chats", "plot", "no-saturation", "patience", "autoscale", "waves"} {
		if flags.Changed(name) {
			return fmt.Errorf("--%s has no meaning with --plan", name)
		}
	}
	switch len(f.Rates) {
	case 0:
	case 1:
		if p.ask.Rate = f.Rates[0]; p.ask.Rate <= 0 {
			return fmt.Errorf("--rate %v: must be above 0", p.ask.Rate)
		}
	default:
		return errors.New("--plan counts replicas for one load: give one --rate")
	}
	if !flags.Changed("requests") {
		f.from.requests = planRequests
	}
	if !flags.Changed("block") {
		f.Block = planBlock
	}
	if !flags.Changed("seeds") {
		f.Seeds = 1
	}
	return nil
}

// run makes the plan and writes it.
func (p *planFlags) run(f *replayFlags, out, errOut io.Writer) error {
	plan, err := replay.MakePlan(f.Options, p.ask)
	f.clearProgress(errOut)
	if err != nil {
		return err
	}
	if f.to.svg != "" {
		if err := writeFile(f.to.svg, plan.Draw); err != nil {
			return err
		}
	}
	if !f.to.asJSON && f.to.output == "table" {
		return plan.Table(out)
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(plan)
}
