// Command routers compares routers side by side in real time: the same simulated replicas, the same
// requests over HTTP, and in turn each router in front of them, all as processes of their own.
//
//	go run ./lab/routers -seconds 90 -rounds 3
//
// It installs other people's routers below -cache and skips the ones that cannot be had, with the
// reason. It watches whether the machine kept up and marks the runs that are void because it did not.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options are the command's arguments.
type options struct {
	plan
	engines
	requests
	builds
	results
}

// plan is the plan of the runs: the loads, how often and how long.
type plan struct {
	routers, traces  []string
	loads            []float64
	atRate           float64
	rounds, parallel int
	seconds, drain   float64
	seed             uint64
	replay           bool
}

// engines are the simulated replicas.
type engines struct {
	replicas   int
	speed      float64
	speeds     []float64
	perProcess int
}

// requests is how the trace's calls are written.
type requests struct {
	api                 string
	session, unstreamed bool
}

// builds are the programs, and kvpilot's settings.
type builds struct {
	cache              string // of other routers
	kvpilot            string
	binaries, settings []string
}

// results is where the results go.
type results struct {
	out              string
	markdown, readme string
	render           string
	command          string
}

// list is a flag that may be given again and takes commas.
type list struct{ to *[]string }

func (l list) String() string {
	if l.to == nil {
		return ""
	}
	return strings.Join(*l.to, ",")
}

func (l list) Set(v string) error {
	for _, s := range strings.Split(v, ",") {
		if s = strings.TrimSpace(s); s != "" {
			*l.to = append(*l.to, s)
		}
	}
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := execute(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "routers:", err)
		os.Exit(1)
	}
}

// execute runs the command of the arguments.
func execute(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == dynamoProxy {
		return runDynamo(ctx, args[1:])
	}
	o, err := readOptions(args)
	if err != nil {
		return err
	}
	if o.render != "" {
		return render(o)
	}
	return run(ctx, o)
}

func readOptions(args []string) (*options, error) {
	o := &options{results: results{command: "go run ./lab/routers " + strings.Join(args, " ")}}
	f := flag.NewFlagSet("routers", flag.ContinueOnError)
	var loads, speeds string
	f.StringVar(&o.cache, "cache", ".cache/routers", "folder for other routers, logs and results")
	f.StringVar(&o.out, "out", "", "folder of this run's logs and results; empty makes one below -cache")
	f.Var(list{&o.routers}, "routers", "routers with commas, NAME[:POLICY][@PROCESSES], of kvpilot NAME:OBJECTIVE, of SMG and sglang-router NAME:tuned, too; default: "+strings.Join(defaultRouters, ","))
	f.Var(list{&o.traces}, "traces", "traces with commas: conversation, hotdoc, chat, agents, synth, or files; default: "+strings.Join(defaultTraces, ","))
	f.StringVar(&loads, "loads", "0.6,0.9", "arrival rates as shares of what the fleet can do with one pooled cache")
	f.Float64Var(&o.atRate, "rate", 0, "arrival rate in requests per second instead of -loads")
	f.IntVar(&o.rounds, "rounds", 3, "rounds; in each all routers take turns")
	f.IntVar(&o.parallel, "parallel", 1, "runs at once, each with a fleet of its own; the checks say when that is too many for the machine")
	f.IntVar(&o.replicas, "replicas", 4, "simulated replicas")
	f.Float64Var(&o.seconds, "seconds", 90, "how long requests are sent")
	f.Float64Var(&o.drain, "drain", 90, "how many seconds unfinished requests are waited for after that")
	f.Float64Var(&o.speed, "speed", 1, "how many times faster engines are than a 70B model on four GPUs, which is also kvpilot's guess")
	f.StringVar(&speeds, "speeds", "", "a factor per replica on top of -speed, with commas, taken in turn: 1,3")
	f.IntVar(&o.perProcess, "per-process", 0, "replicas in one simulator process; 0 puts all into one, which costs the least")
	f.StringVar(&o.api, "api", "chat", "chat or completions")
	f.Var(list{&o.binaries}, "binary", "NAME=PATH: another build of kvpilot to compare; may be given again")
	f.StringVar(&o.kvpilot, "kvpilot", "", "the build of kvpilot to use, for the simulated replicas too; empty builds the working tree's")
	f.Var(list{&o.settings}, "set", "path=value: a setting of kvpilot; may be given again")
	f.Uint64Var(&o.seed, "seed", 1, "seed of generated traces and of the arrivals within one moment")
	f.BoolVar(&o.replay, "replay", false, "also play the same requests with kvpilot replay and compare")
	f.BoolVar(&o.session, "session", false, "name the conversation in X-Session-Id")
	f.BoolVar(&o.unstreamed, "unstreamed", false, "ask for answers in one piece: the time to the first token is that of the whole answer")
	f.StringVar(&o.markdown, "markdown", "", "also write the report and its plots to this Markdown file")
	f.StringVar(&o.readme, "readme", "", "also write the result in one sentence between the marks in this file")
	f.StringVar(&o.render, "render", "", "play nothing: report the results.json of earlier runs again, several with commas as one report")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	var err error
	if o.loads, err = floats(loads); err != nil {
		return nil, fmt.Errorf("-loads: %w", err)
	}
	if o.speeds, err = floats(speeds); err != nil {
		return nil, fmt.Errorf("-speeds: %w", err)
	}
	return o, o.check()
}

func floats(text string) ([]float64, error) {
	var values []float64
	for _, s := range strings.Split(text, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return nil, err
		}
		if v <= 0 {
			return nil, fmt.Errorf("%s is not above zero", s)
		}
		values = append(values, v)
	}
	return values, nil
}

var (
	defaultTraces  = []string{"conversation", "hotdoc", "chat", "agents"}
	defaultRouters = []string{
		"kvpilot", "kvpilot@2", "kvpilot@4", "kvpilot:weighted-scorers", "vllm-router:kv_aware", "vllm-router:cache_aware",
		"vllm-router:round_robin", "smg:cache_aware", "sglang-router:cache_aware", "dynamo", "haproxy", "nginx",
	}
)

// check completes the options and finds their faults.
func (o *options) check() error {
	if len(o.routers) == 0 {
		o.routers = defaultRouters
	}
	if len(o.traces) == 0 {
		o.traces = defaultTraces
	}
	if o.atRate > 0 {
		o.loads = []float64{0}
	}
	for _, b := range o.binaries {
		if name, path, ok := strings.Cut(b, "="); !ok || name == "" || path == "" {
			return fmt.Errorf("-binary %q: want NAME=PATH", b)
		}
	}
	switch {
	case o.replicas < 1 || o.replicas > 256:
		return fmt.Errorf("-replicas %d: 1 to 256 are possible", o.replicas)
	case o.rounds < 1 || o.parallel < 1:
		return errors.New("-rounds and -parallel must be at least 1")
	case o.seconds <= 0 || o.drain < 0 || o.speed <= 0:
		return errors.New("-seconds and -speed must be above zero, -drain not below it")
	case o.api != "chat" && o.api != "completions":
		return fmt.Errorf("-api %q: chat and completions are possible", o.api)
	}
	abs, err := filepath.Abs(o.cache)
	if err != nil {
		return err
	}
	o.cache = abs
	if o.render != "" {
		return nil
	}
	if o.out == "" {
		o.out = filepath.Join(o.cache, "runs", time.Now().Format("0102-150405"))
	}
	if o.out, err = filepath.Abs(o.out); err != nil {
		return err
	}
	if entries, err := os.ReadDir(o.out); err == nil && len(entries) > 0 {
		return fmt.Errorf("-out %s: it has files, of an earlier run perhaps; name an empty folder", o.out)
	}
	return os.MkdirAll(o.out, 0o755)
}

// factor is how fast replica n is.
func (e *engines) factor(n int) float64 {
	if len(e.speeds) == 0 {
		return e.speed
	}
	return e.speed * e.speeds[n%len(e.speeds)]
}

// power is the mean of the replicas' factors.
func (e *engines) power() float64 {
	sum := 0.0
	for n := range e.replicas {
		sum += e.factor(n)
	}
	return sum / float64(e.replicas)
}
