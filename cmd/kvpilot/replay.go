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
	"github.com/spf13/pflag"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/sim/enginemodel"
	"github.com/kvpilot/kvpilot/sim/replay"
)

// replayFlags are the command's arguments.
type replayFlags struct {
	replay.Options
	from                     traceFlags
	loads, policies, profile string
	roles, splits            []string
	weights                  map[string]string
	turns                    []string
	scalers                  []string
	wave                     string
	to                       reportFlags
	plan                     planFlags
	adapters                 enginemodel.Adapters
	cache                    int // tokens of each replica, 0: the profile's
}

// traceFlags say where the requests come from.
type traceFlags struct {
	file, generate  string
	requests, first int
	atLeast         int
	seed            uint64
}

// reportFlags say where the results go.
type reportFlags struct {
	output, plot, svg string
	asJSON, quiet     bool
}

// secondsFlag is a flag of a duration that the player takes in seconds.
type secondsFlag struct{ of *float64 }

// String implements pflag.Value.
func (s secondsFlag) String() string {
	if s.of == nil {
		return ""
	}
	return time.Duration(*s.of * float64(time.Second)).String()
}

// Set implements pflag.Value.
func (s secondsFlag) Set(text string) error {
	d, err := time.ParseDuration(text)
	*s.of = d.Seconds()
	return err
}

// Type implements pflag.Value.
func (s secondsFlag) Type() string { return "duration" }

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
  kvpilot replay --generate agent --replicas 4 --memory 0.5,1,2 --policies predicted-ttft,consistent-hash --patience 0
  kvpilot replay --generate agentx --replicas 8 --memory 2 --policies predicted-ttft,thunderagent,progress-ttl --patience 0
  kvpilot replay --plan --generate decode --replicas 8 --rate 8 --slo-tpot 30ms`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.plan.defaults(&f, cmd.Flags()); err != nil {
				return err
			}
			return f.run(cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.RTT, f.Goal, f.Delays, f.Transfers, f.Tiers = time.Millisecond.Seconds(), replay.DefaultGoal(), replay.LocalDelays(), replay.PublishedTransfers(), replay.DefaultTiers()
	flags := cmd.Flags()
	f.from.add(flags)
	flags.IntVar(&f.Replicas, "replicas", 8, "modelled replicas")
	flags.IntVar(&f.Routers, "routers", 1, "routers before the replicas; each request goes to a random one")
	flags.StringVar((*string)(&f.Fleet), "fleet", string(replay.FleetAlone), fmt.Sprintf("how several routers decide, one of %v: each alone, or all by asking one decider", replay.Fleets()))
	flags.StringVar((*string)(&f.Frontends), "frontends", string(replay.FrontendsAll), fmt.Sprintf("what each router knows of a prompt, one of %v: all its ids; those of the turn before if that came to it, else it waits for all; those of any older turn that came to it", replay.FrontendKinds()))
	flags.Var(secondsFlag{&f.RTT}, "rtt", "round trip between two routers")
	flags.StringVar(&f.loads, "load", "0.7", "arrival rates as shares of the oracle's saturation, separated by commas")
	flags.Float64SliceVar(&f.Rates, "rate", nil, "arrival rates in requests per second instead, separated by commas")
	flags.Float64SliceVar(&f.Memory, "memory", nil, "loads of closed loops by programs at once instead: by how many times the fleet's memory their contexts take, separated by commas")
	flags.IntSliceVar(&f.Programs, "programs", nil, "loads of closed loops by this many programs at once instead, separated by commas")
	flags.Float64Var(&f.Chats, "chats", 0, "turns of chats per second, in the shape of conv, next to the programs of --memory or --programs; they are reported apart, and next to the same chats alone on half of the replicas")
	flags.StringVar(&f.policies, "policies", "all", fmt.Sprintf("policies, separated by commas; all are kvpilot's own, others are rules of other routers, %v; for closed loops also their rules for programs, %v; for adapters also %s",
		replay.Rivals(), replay.ProgramRules(), replay.LLMDAdapters))
	flags.StringVar((*string)(&f.Objective), "objective", "", "objective of predicted-ttft: answer (default), ttft, completion or slo (with the targets of --slo-ttft and --slo-tpot)")
	flags.StringToStringVar(&f.weights, "weights", nil, "parameters of the policies by name, for example interference=0.1,congestion=1")
	flags.IntVar(&f.Seeds, "seeds", 3, "runs per policy")
	flags.StringVar(&f.profile, "profile", "70b", "modelled engine: 70b or 8b")
	flags.IntVar(&f.cache, "cache-tokens", 0, "KV cache of each replica in tokens; 0: the profile's")
	flags.IntVar(&f.Block, "block", 128, "block size in tokens; results do not depend on it, the time to play does")
	flags.IntVar(&f.Workers, "workers", 0, "concurrent runs; 0: the number of cores")
	outputFlag(cmd, &f.to.output)
	flags.BoolVar(&f.to.asJSON, "json", false, "print JSON")
	flags.Lookup("json").Hidden = true // its former name
	flags.StringVar(&f.to.plot, "plot", "", "write a page of bar charts (HTML) to this file")
	flags.StringVar(&f.to.svg, "svg", "", "draw mean first tokens and whole answers over the loads to this SVG file")
	flags.BoolVar(&f.NoSaturation, "no-saturation", false, "leave out the runs that measure saturation")
	flags.Float64Var(&f.Patience, "patience", 20, "stop a run when its mean is certain to exceed this many times the oracle's; 0: never")
	flags.Var(secondsFlag{&f.Goal.TTFT}, "slo-ttft", "an answer is good when its first token comes within this time")
	flags.Var(secondsFlag{&f.Goal.TPOT}, "slo-tpot", "and its other tokens take at most this time each, on average")
	flags.BoolVar(&f.to.quiet, "quiet", false, "show no progress")
	flags.Float64Var(&f.PaceBias, "rate-bias", 1, "factor on the prefill times that the router learned")
	flags.Float64Var(&f.EventLoss, "event-loss", 0, "share of KV events that are lost")
	flags.Var(secondsFlag{&f.Delays.Event}, "event-delay", "time from the end of an engine's step until the router's index has its KV events")
	flags.Var(secondsFlag{&f.Delays.Send}, "send-delay", "time from the choice until the engine's scheduler has the request")
	flags.Var(secondsFlag{&f.Delays.Receive}, "receive-delay", "time from the end of a step until the router has the first of its outputs")
	flags.Var(secondsFlag{&f.Delays.Gap}, "output-gap", "time between two outputs of one step, which the engine writes one after the other")
	flags.Var(secondsFlag{&f.Delays.SendJitter}, "send-jitter", "mean of an exponential time by which each request is late")
	flags.Var(secondsFlag{&f.Delays.Jitter}, "output-jitter", "mean of an exponential time by which each output is late")
	flags.Var(secondsFlag{&f.Delays.Tokenize}, "tokenize-time", "time until the router has a prompt's token ids")
	flags.Var(secondsFlag{&f.Delays.TokenizeToken}, "tokenize-token-time", "additional time per prompt token")
	flags.Float64SliceVar(&f.Hardware.Speeds, "speeds", nil, "speeds of the replicas as multiples of the profile's, repeated over all of them: 4, or 1,3 for a pool of two speeds")
	flags.Float64SliceVar(&f.Hardware.Caches, "caches", nil, "KV caches of the replicas as multiples of --cache-tokens or the profile's, repeated over all of them: 1,0.5 for a pool of two sizes")
	flags.Float64Var(&f.Beginnings, "known-beginnings", 0, "share of later turns for which the router knows the ids of the previous turn and estimates the rest")
	flags.BoolVar(&f.Nameless, "no-sessions", false, "requests name no session: programs are found by their prompts alone")
	flags.BoolVar(&f.NoPrograms, "no-programs", false, "the router does not hold programs back that fit in no memory: a program_horizon of 0")
	flags.BoolVar(&f.Answers.Whole, "unstreamed", false, "answers come in one piece: the router sees no first token")
	flags.IntVar(&f.Answers.Limit, "max-tokens", 0, "requests say this limit of their answers instead of the length that these will have; 0: the length")
	flags.StringSliceVar(&f.turns, "turn", nil, "replica:seconds:speed: the replica, counted from 0, has another speed from then on; may be given again")
	flags.StringSliceVar(&f.roles, "roles", nil, "divisions of the replicas under predicted-ttft, separated by commas: none, both, or numbers of replicas that prefill, decode or do both, such as 2p6d")
	flags.StringSliceVar(&f.splits, "split", nil, fmt.Sprintf("rules by which requests are split under each of --roles, separated by commas, of %v; price is the router's own", replay.SplitRules()))
	flags.Var(secondsFlag{&f.Transfers.Start}, "transfer-start", "time of a transfer of KV cache before its first token moves")
	flags.Var(secondsFlag{&f.Transfers.PerToken}, "transfer-token-time", "and for each token")
	f.addTiers(flags)
	f.addAdapters(flags)
	f.plan.add(flags)
	f.addScaling(flags)
	flags.Float64Var(&f.Texts, "known-texts", 0, "share of requests for which the router knows no ids and estimates the length")
	return cmd
}

// add adds the flags of the trace.
func (f *traceFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.file, "trace", "", "trace file to play")
	flags.StringVar(&f.generate, "generate", "", "generate a trace instead: "+strings.Join(replay.Generators(), ", "))
	flags.IntVar(&f.requests, "requests", 12000, "requests of a generated trace")
	flags.Uint64Var(&f.seed, "trace-seed", 1, "seed of a generated trace: another one has other requests of the same kind")
	flags.IntVar(&f.atLeast, "at-least", replay.FewestRequests, "repeat a shorter trace file up to this many requests; 0 plays it once")
	flags.IntVar(&f.first, "first", 0, "play only this many requests of a trace file; 0 plays all")
}

// addTiers adds the flags of tiers below the GPU.
func (f *replayFlags) addTiers(flags *pflag.FlagSet) {
	flags.IntVar(&f.Tiers.Host.Tokens, "host-cache", 0, "KV cache that each replica keeps in host memory, in tokens; 0: none")
	flags.Var(secondsFlag{&f.Tiers.Host.Start}, "host-load-start", "time of a load from host memory before its first token moves")
	flags.Var(secondsFlag{&f.Tiers.Host.PerToken}, "host-load-token-time", "and for each token")
	flags.IntVar(&f.Tiers.Store.Tokens, "store-cache", 0, "KV cache in a store that all replicas share, in tokens; 0: none")
	flags.Var(secondsFlag{&f.Tiers.Store.Start}, "store-load-start", "time of a load from the store before its first token moves")
	flags.Var(secondsFlag{&f.Tiers.Store.PerToken}, "store-load-token-time", "and for each token")
	flags.BoolVar(&f.Tiers.Unknown, "no-tier-events", false, "the router gets no events of host memory and the store")
}

// addAdapters adds the flags of LoRA adapters.
func (f *replayFlags) addAdapters(flags *pflag.FlagSet) {
	flags.IntVar(&f.adapters.Slots, "max-loras", 4, "LoRA adapters that a replica's GPU memory holds and a step computes, for traces with adapters; 0: without limit, and loading them takes no time")
	flags.IntVar(&f.adapters.Host, "max-cpu-loras", 0, "LoRA adapters that its host memory holds, at least --max-loras")
	flags.DurationVar(&f.adapters.Load, "adapter-load-time", 200*time.Millisecond, "time to read a LoRA adapter into host memory, in which the engine computes nothing")
	flags.DurationVar(&f.adapters.Activate, "adapter-copy-time", 20*time.Millisecond, "time to copy one from host to GPU memory")
	flags.BoolVar(&f.NoAdapterNames, "no-adapter-names", false, "the router does not know the LoRA adapters of requests")
}

func (f *replayFlags) run(out, errOut io.Writer) error {
	if err := knownOutput(f.to.output); err != nil {
		return err
	}
	loads, err := f.complete()
	if err != nil {
		return err
	}
	if !f.to.quiet {
		f.Progress = func(done, all int) { fmt.Fprintf(errOut, "\rrun %d of %d ", done, all) }
	}
	if f.plan.wanted {
		return f.plan.run(f, out, errOut)
	}
	reports, err := replay.PlayLoads(f.Options, loads...)
	f.clearProgress(errOut)
	if err != nil {
		return err
	}
	return f.to.write(out, reports)
}

// clearProgress removes the line that shows progress.
func (f *replayFlags) clearProgress(errOut io.Writer) {
	if !f.to.quiet {
		fmt.Fprint(errOut, "\r\033[K")
	}
}

func (f *reportFlags) write(out io.Writer, reports []*replay.Report) error {
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

// complete fills in the options that are no flags of their own, and returns the loads.
func (f *replayFlags) complete() ([]float64, error) {
	if f.Objective != "" && !f.Objective.Known() {
		return nil, fmt.Errorf("unknown objective %q; known are %v", f.Objective, decision.Objectives())
	}
	for name, text := range f.weights {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("--weights: %s must be a number, got %q", name, text)
		}
		if f.Weights == nil {
			f.Weights = map[string]float64{}
		}
		f.Weights[name] = n
	}
	var err error
	if f.Turns, err = replay.ParseTurns(f.turns); err != nil {
		return nil, fmt.Errorf("--turn: %w", err)
	}
	if f.Trace, f.AtLeast, err = f.from.read(); err != nil {
		return nil, err
	}
	var names []string
	for _, p := range replay.Profiles() {
		names = append(names, p.Name)
		if p.Name == f.profile {
			f.Profile = p
		}
	}
	f.Profile.Adapters = f.adapters
	if f.cache > 0 {
		f.Profile.CacheTokens = f.cache
	}
	if f.Profile.Name == "" {
		return nil, fmt.Errorf("unknown profile %q; known are %v", f.profile, names)
	}
	for _, p := range strings.Split(f.policies, ",") {
		switch p = strings.TrimSpace(p); p {
		case "all":
			f.Policies = append(f.Policies, decision.Policies()...)
		case "others":
			f.Policies = append(f.Policies, replay.Rivals()...)
		default:
			f.Policies = append(f.Policies, decision.Policy(p))
		}
	}
	for _, text := range f.roles {
		roles, err := replay.ParseRoles(strings.TrimSpace(text), f.Replicas)
		if err != nil {
			return nil, fmt.Errorf("--roles: %w", err)
		}
		f.Roles = append(f.Roles, roles)
	}
	if err := f.completeScaling(); err != nil {
		return nil, err
	}
	for _, text := range f.splits {
		f.Splits = append(f.Splits, replay.SplitRule(strings.TrimSpace(text)))
	}
	var loads []float64
	for _, text := range strings.Split(f.loads, ",") {
		load, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil {
			return nil, fmt.Errorf("--load %q: %w", text, err)
		}
		loads = append(loads, load)
	}
	return loads, nil
}

// read returns the trace and the number of requests that it is repeated up to.
func (f *traceFlags) read() (t *replay.Trace, atLeast int, err error) {
	switch {
	case (f.file == "") == (f.generate == ""):
		return nil, 0, errors.New("set exactly one of --trace and --generate")
	case f.generate != "":
		t, err = replay.Generate(f.generate, f.requests, f.seed)
		return t, 0, err
	}
	if t, err = replay.ReadTrace(f.file); err != nil || f.first <= 0 {
		return t, f.atLeast, err
	}
	return t.First(f.first), 0, nil
}

func writePlot(path string, draw func(io.Writer, []*replay.Report) error, reports []*replay.Report) error {
	return writeFile(path, func(w io.Writer) error { return draw(w, reports) })
}

func writeFile(path string, draw func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write plot: %w", err)
	}
	return errors.Join(draw(file), file.Close())
}
