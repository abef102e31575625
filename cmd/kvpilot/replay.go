package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/sim/replay"
)

// replayFlags are the command's arguments.
type replayFlags struct {
	atLeast                                         int
	trace, generate, policies, loads, profile, plot string
	svg                                             string
	requests, replicas, seeds, block, workers       int
	bias, loss, patience, beginnings, texts         float64
	answers                                         replay.Answers
	turns                                           []string
	speeds, rates, memory                           []float64
	first                                           int
	tokenize, tokenizeToken, send, receive, gap     time.Duration
	sendJitter, jitter                              time.Duration
	event                                           time.Duration
	asJSON, noSaturation, quiet                     bool
	objective, output                               string
	routers                                         int
	fleet, frontends                                string
	rtt                                             time.Duration
	weights                                         map[string]string
	goalTTFT, goalTPOT                              time.Duration
}

// newReplayCommand plays a trace over modelled replicas.
func newReplayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Play a trace over modelled replicas with several policies, and compare them",
		Long: `Play a trace of requests (Mooncake's jsonl, plain or gzipped, or closed-loop sessions) over modelled vLLM
replicas, with the router's own choice, reservations and index, in virtual time. The load is given as a
share of what an oracle with one pooled cache can complete.`,
		Example: `  kvpilot replay --trace conversation_trace.jsonl.gz --replicas 8 --load 0.7,0.95 --policies all --seeds 3
  kvpilot replay --generate hotdoc --replicas 8 --load 0.95 --policies predicted-ttft,overlap-load -o json
  kvpilot replay --generate agent --replicas 4 --memory 0.5,1,2 --policies predicted-ttft,consistent-hash --patience 0`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.trace, "trace", "", "trace file to play")
	flags.StringVar(&f.generate, "generate", "", "generate a trace instead: "+strings.Join(replay.Generators(), ", "))
	flags.IntVar(&f.requests, "requests", 12000, "requests of a generated trace")
	flags.IntVar(&f.atLeast, "at-least", replay.FewestRequests, "repeat a shorter trace file up to this many requests; 0 plays it once")
	flags.IntVar(&f.replicas, "replicas", 8, "modelled replicas")
	flags.IntVar(&f.routers, "routers", 1, "routers before the replicas; each request goes to a random one")
	flags.StringVar(&f.fleet, "fleet", string(replay.FleetAlone), fmt.Sprintf("how several routers decide, one of %v: each alone, or all by asking one decider", replay.Fleets()))
	flags.StringVar(&f.frontends, "frontends", string(replay.FrontendsAll), fmt.Sprintf("what each router knows of a prompt, one of %v: all its ids; those of the turn before if that came to it, else it waits for all; those of any older turn that came to it", replay.FrontendKinds()))
	flags.DurationVar(&f.rtt, "rtt", time.Millisecond, "round trip between two routers")
	flags.StringVar(&f.loads, "load", "0.7", "arrival rates as shares of the oracle's saturation, separated by commas")
	flags.Float64SliceVar(&f.rates, "rate", nil, "arrival rates in requests per second instead, separated by commas")
	flags.Float64SliceVar(&f.memory, "memory", nil, "loads of closed loops by sessions at once instead: by how many times the fleet's memory their contexts take, separated by commas")
	flags.IntVar(&f.first, "first", 0, "play only this many requests of a trace file; 0 plays all")
	flags.StringVar(&f.policies, "policies", "all", "policies, separated by commas, or all")
	flags.StringVar(&f.objective, "objective", "", "objective of predicted-ttft: answer (default), ttft or slo (with the targets of --slo-ttft and --slo-tpot)")
	flags.StringToStringVar(&f.weights, "weights", nil, "parameters of the policies by name, for example interference=0.1,congestion=1")
	flags.IntVar(&f.seeds, "seeds", 3, "runs per policy")
	flags.StringVar(&f.profile, "profile", "70b", "modelled engine: 70b or 8b")
	flags.IntVar(&f.block, "block", 128, "block size in tokens; results do not depend on it, the time to play does")
	flags.IntVar(&f.workers, "workers", 0, "concurrent runs; 0: the number of cores")
	outputFlag(cmd, &f.output)
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	flags.Lookup("json").Hidden = true // its former name
	flags.StringVar(&f.plot, "plot", "", "write a page of bar charts (HTML) to this file")
	flags.StringVar(&f.svg, "svg", "", "draw mean first tokens and whole answers over the loads to this SVG file")
	flags.BoolVar(&f.noSaturation, "no-saturation", false, "leave out the runs that measure saturation")
	flags.Float64Var(&f.patience, "patience", 20, "stop a run when its mean is certain to exceed this many times the oracle's; 0: never")
	goal := replay.DefaultGoal()
	flags.DurationVar(&f.goalTTFT, "slo-ttft", seconds(goal.TTFT), "an answer is good when its first token comes within this time")
	flags.DurationVar(&f.goalTPOT, "slo-tpot", seconds(goal.TPOT), "and its other tokens take at most this time each, on average")
	flags.BoolVar(&f.quiet, "quiet", false, "show no progress")
	flags.Float64Var(&f.bias, "rate-bias", 1, "factor on the prefill times that the router learned")
	flags.Float64Var(&f.loss, "event-loss", 0, "share of KV events that are lost")
	d := replay.LocalDelays()
	flags.DurationVar(&f.event, "event-delay", seconds(d.Event), "time from the end of an engine's step until the router's index has its KV events")
	flags.DurationVar(&f.send, "send-delay", seconds(d.Send), "time from the choice until the engine's scheduler has the request")
	flags.DurationVar(&f.receive, "receive-delay", seconds(d.Receive), "time from the end of a step until the router has the first of its outputs")
	flags.DurationVar(&f.gap, "output-gap", seconds(d.Gap), "time between two outputs of one step, which the engine writes one after the other")
	flags.DurationVar(&f.sendJitter, "send-jitter", seconds(d.SendJitter), "mean of an exponential time by which each request is late")
	flags.DurationVar(&f.jitter, "output-jitter", seconds(d.Jitter), "mean of an exponential time by which each output is late")
	flags.DurationVar(&f.tokenize, "tokenize-time", seconds(d.Tokenize), "time until the router has a prompt's token ids")
	flags.DurationVar(&f.tokenizeToken, "tokenize-token-time", seconds(d.TokenizeToken), "additional time per prompt token")
	flags.Float64SliceVar(&f.speeds, "speeds", nil, "speeds of the replicas as multiples of the profile's, repeated over all of them: 4, or 1,3 for a pool of two speeds")
	flags.Float64Var(&f.beginnings, "known-beginnings", 0, "share of later turns for which the router knows the ids of the previous turn and estimates the rest")
	flags.BoolVar(&f.answers.Whole, "unstreamed", false, "answers come in one piece: the router sees no first token")
	flags.IntVar(&f.answers.Limit, "max-tokens", 0, "requests say this limit of their answers instead of the length that these will have; 0: the length")
	flags.StringSliceVar(&f.turns, "turn", nil, "replica:seconds:speed: the replica, counted from 0, has another speed from then on; may be given again")
	flags.Float64Var(&f.texts, "known-texts", 0, "share of requests for which the router knows no ids and estimates the length")
	return cmd
}

func (f *replayFlags) run(out, errOut io.Writer) error {
	if err := knownOutput(f.output); err != nil {
		return err
	}
	options, loads, err := f.options()
	if err != nil {
		return err
	}
	if !f.quiet {
		options.Progress = func(done, all int) { fmt.Fprintf(errOut, "\rrun %d of %d ", done, all) }
	}
	reports, err := replay.PlayLoads(options, loads...)
	if err != nil {
		return err
	}
	if !f.quiet {
		fmt.Fprint(errOut, "\r\033[K")
	}
	if f.plot != "" {
		if err := writePlot(f.plot, replay.Plot, reports); err != nil {
			return err
		}
	}
	if f.svg != "" {
		if err := writePlot(f.svg, replay.Curves, reports); err != nil {
			return err
		}
	}
	if !f.asJSON && f.output == "table" {
		for _, r := range reports {
			if err := r.Table(out); err != nil {
				return err
			}
		}
		return nil
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	if len(reports) == 1 {
		return enc.Encode(reports[0])
	}
	return enc.Encode(map[string]any{"cells": reports})
}

func (f *replayFlags) options() (replay.Options, []float64, error) {
	o := replay.Options{
		Replicas: f.replicas, Routers: f.routers, Fleet: replay.Fleet(f.fleet), Frontends: replay.Frontends(f.frontends), RTT: f.rtt.Seconds(), Seeds: f.seeds, Block: f.block, Workers: f.workers, NoSaturation: f.noSaturation,
		Goal:     replay.Goal{TTFT: f.goalTTFT.Seconds(), TPOT: f.goalTPOT.Seconds()},
		Patience: f.patience, PaceBias: f.bias, EventLoss: f.loss,
		Speeds: f.speeds, Rates: f.rates, Memory: f.memory, Beginnings: f.beginnings, Texts: f.texts, Answers: f.answers,
		Delays: replay.Delays{
			Tokenize: f.tokenize.Seconds(), TokenizeToken: f.tokenizeToken.Seconds(), Send: f.send.Seconds(), SendJitter: f.sendJitter.Seconds(),
			Receive: f.receive.Seconds(), Gap: f.gap.Seconds(), Jitter: f.jitter.Seconds(), Event: f.event.Seconds(),
		},
	}
	if o.Objective = decision.Objective(f.objective); f.objective != "" && !o.Objective.Known() {
		return o, nil, fmt.Errorf("unknown objective %q; known are %v", f.objective, decision.Objectives())
	}
	for name, text := range f.weights {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return o, nil, fmt.Errorf("--weights: %s must be a number, got %q", name, text)
		}
		if o.Weights == nil {
			o.Weights = map[string]float64{}
		}
		o.Weights[name] = n
	}
	var err error
	if o.Turns, err = replay.ParseTurns(f.turns); err != nil {
		return o, nil, fmt.Errorf("--turn: %w", err)
	}
	switch {
	case (f.trace == "") == (f.generate == ""):
		return o, nil, errors.New("set exactly one of --trace and --generate")
	case f.trace != "":
		o.AtLeast = f.atLeast
		if o.Trace, err = replay.ReadTrace(f.trace); err == nil && f.first > 0 {
			o.Trace, o.AtLeast = o.Trace.First(f.first), 0
		}
	default:
		o.Trace, err = replay.Generate(f.generate, f.requests, 1)
	}
	if err != nil {
		return o, nil, err
	}
	var names []string
	for _, p := range replay.Profiles() {
		names = append(names, p.Name)
		if p.Name == f.profile {
			o.Profile = p
		}
	}
	if o.Profile.Name == "" {
		return o, nil, fmt.Errorf("unknown profile %q; known are %v", f.profile, names)
	}
	if f.policies == "all" {
		o.Policies = decision.Policies()
	} else {
		for _, p := range strings.Split(f.policies, ",") {
			o.Policies = append(o.Policies, decision.Policy(strings.TrimSpace(p)))
		}
	}
	var loads []float64
	for _, text := range strings.Split(f.loads, ",") {
		load, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil {
			return o, nil, fmt.Errorf("--load %q: %w", text, err)
		}
		loads = append(loads, load)
	}
	return o, loads, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func writePlot(path string, draw func(io.Writer, []*replay.Report) error, reports []*replay.Report) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write plot: %w", err)
	}
	return errors.Join(draw(file, reports), file.Close())
}
