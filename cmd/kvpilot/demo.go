package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kvpilot/kvpilot/internal/loadgen"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// demoFlags are the flags of kvpilot demo.
type demoFlags struct {
	replicas []string
	events   []string
	replays  []string
	count    int
	routers  int
	speed    float64
	serve    bool
	verbose  bool
	// disaggregated gives the simulated replicas a KV connector.
	disaggregated bool
	conversations int
	turns         int
	concurrency   int
	model         string
	http          string
	grpc          string
	admin         string
}

// documents makes the load one for split requests: documents that no cache holds, and answers that would wait while they are computed.
// It leaves the flags that changed reports as they are.
func (f *demoFlags) documents(changed func(flag string) bool) {
	for flag, to := range map[string]struct {
		field *int
		value int
	}{"conversations": {&f.conversations, 80}, "turns": {&f.turns, 1}, "concurrency": {&f.concurrency, 32}} {
		if !changed(flag) {
			*to.field = to.value
		}
	}
}

// newDemoCommand shows what KV-aware routing is worth, on one machine.
func newDemoCommand(env []string, out, errOut io.Writer) *cobra.Command {
	var f demoFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show KV-aware routing against others, with simulated replicas",
		Long: `Start simulated replicas and the router in this process, play the same multi-turn load three times through
the REST surface, with round robin, with the fewest requests in flight and KV-aware, and compare the latencies. Several routers are a fleet: each request goes to the
next one, and one of them decides for all.`,
		Example: `  kvpilot demo
  kvpilot demo --serve
  kvpilot demo --routers 3
  kvpilot demo --disaggregated
  kvpilot demo --replica http://10.0.0.7:8000 --replica http://10.0.0.8:8000`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.routers < 1 || f.routers > 16 {
				return fmt.Errorf("--routers must be from 1 to 16, got %d", f.routers)
			}
			if f.disaggregated {
				f.documents(cmd.Flags().Changed)
			}
			d := &demo{demoFlags: f, env: env, out: out, log: io.Discard}
			if f.verbose {
				d.log = errOut
			}
			return d.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	formerly(flags, map[string]string{"replicas": "replica", "replays": "replay"})
	flags.StringSliceVar(&f.replicas, "replica", nil, "base URL of a real replica to use instead of simulated ones; may be repeated")
	flags.StringSliceVar(&f.events, "events", []string{"tcp://{host}:5557"}, "where replicas publish KV events; one address for all, or repeated, one for each")
	flags.StringSliceVar(&f.replays, "replay", nil, "where replicas replay KV events; one address for all, or repeated, one for each")
	flags.IntVar(&f.count, "count", 4, "number of simulated replicas")
	flags.IntVar(&f.routers, "routers", 1, "number of routers")
	flags.Float64Var(&f.speed, "speed", 3, "speed, relative to a 70B model on four GPUs")
	flags.BoolVar(&f.serve, "serve", false, "keep everything running after the comparison, until stopped")
	flags.BoolVar(&f.disaggregated, "disaggregated", false, "let a simulated replica compute long prompts for the others, where the router finds that cheaper")
	flags.BoolVar(&f.verbose, "verbose", false, "write the router's log")
	flags.IntVar(&f.conversations, "conversations", 40, "conversations to play")
	flags.IntVar(&f.turns, "turns", 6, "turns of each conversation")
	flags.IntVar(&f.concurrency, "concurrency", 20, "concurrent conversations")
	flags.StringVar(&f.model, "model", "", "model to use; empty: the first one")
	flags.StringVar(&f.http, "http", "", "address of the REST surface (default with --serve: 127.0.0.1:8080 when free; else any free port)")
	flags.StringVar(&f.grpc, "grpc", "", "address of the gRPC services (likewise 127.0.0.1:9090)")
	flags.StringVar(&f.admin, "admin", "", "address of health, metrics and console (likewise 127.0.0.1:9091)")
	return cmd
}

// demo is one run of the command.
type demo struct {
	demoFlags
	env  []string
	out  io.Writer
	log  io.Writer
	sims []*simReplica
}

func (d *demo) run(ctx context.Context) error {
	began := time.Now()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	specs, err := d.fleet(ctx)
	if err != nil {
		return err
	}
	routers, err := d.newRouters(ctx, specs)
	if err != nil {
		return err
	}
	group, inner := errgroup.WithContext(ctx)
	routersDown := make(chan struct{})
	simCtx, stopSims := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSims()
	group.Go(func() error { return runSims(simCtx, d.sims) })
	group.Go(func() error { defer close(routersDown); return runRouters(inner, routers) })
	group.Go(func() error { <-routersDown; stopSims(); return nil }) // streams in flight end properly
	group.Go(func() error {
		err := d.play(inner, routers, began)
		stop()
		return err
	})
	err = group.Wait()
	if errors.Is(err, context.Canceled) {
		return nil // stopped by the user
	}
	return err
}

// fleet opens the simulated replicas, or describes the real ones.
func (d *demo) fleet(ctx context.Context) ([]registry.Spec, error) {
	var specs []registry.Spec
	nth := func(list []string, n int) string {
		if len(list) == 0 {
			return ""
		}
		return list[min(n, len(list)-1)]
	}
	for n, url := range d.replicas {
		spec := registry.Spec{URL: strings.TrimRight(url, "/")}
		spec.Events.Endpoint, spec.Events.Replay = nth(d.events, n), nth(d.replays, n)
		specs = append(specs, spec)
	}
	if len(specs) > 0 {
		return specs, nil
	}
	cfg := enginesim.DefaultConfig()
	cfg.Core.Timing.Speed = d.speed
	cfg.Core.Blocks = 2561 // 40k tokens: about a third of the need of the demo's conversations
	cfg.Core.MaxModelLen = 32768
	if d.disaggregated {
		cfg.Transfer.Connector, cfg.Core.Blocks = replica.NIXL.String(), 10_240 // room for the documents in flight
	}
	for n := range d.count {
		cfg.Core.Seed = uint64(time.Now().UnixNano()) + uint64(n)
		r, err := newSimReplica(ctx, cfg, simPorts{host: "127.0.0.1"}, n, slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		d.sims = append(d.sims, r)
		spec := registry.Spec{ID: replica.ID(fmt.Sprintf("sim-%d", n)), URL: r.url}
		spec.Events.Endpoint, spec.Events.Replay = r.events[0], r.replays[0]
		if d.disaggregated {
			spec.Labels = map[string]string{replica.LabelConnector: cfg.Transfer.Connector}
			if n == 0 && d.count > 1 {
				spec.Labels[replica.LabelRole] = replica.PrefillOnly.String()
			}
		}
		specs = append(specs, spec)
	}
	return specs, nil
}

// config is the configuration of router number n: the defaults and the demo's replicas. The first one has the usual addresses.
func (d *demo) config(ctx context.Context, specs []registry.Spec, n int) (config.Config, error) {
	usual := config.DefaultListen()
	if n > 0 {
		other := *d
		other.http, other.grpc, other.admin, other.serve = "", "", "", false
		d = &other
	}
	c, err := config.Load(config.Source{Env: d.env, Set: []string{
		"listen.http=" + d.address(ctx, d.http, usual.HTTP),
		"listen.grpc=" + d.address(ctx, d.grpc, usual.GRPC),
		"listen.admin=" + d.address(ctx, d.admin, usual.Admin),
	}})
	if err != nil {
		return c, err
	}
	c.Registry.Replicas = specs
	c.API.Overrides = true
	return c, nil
}

// address is where to listen without a flag: a demo that keeps serving uses kvpilot's default address,
// so that commands find it, unless it is taken.
func (d *demo) address(ctx context.Context, asked, usual string) string {
	const free = "127.0.0.1:0"
	switch {
	case asked != "":
		return asked
	case !d.serve:
		return free
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", usual)
	if err != nil {
		return free
	}
	l.Close()
	return usual
}

// phase is one round, with one policy.
type phase struct {
	title  string
	policy decision.Policy
	loadgen.Summary
}

// play waits for the fleet, plays the rounds and prints the table.
func (d *demo) play(ctx context.Context, routers []*demoRouter, began time.Time) error {
	if err := untilServing(ctx, routers); err != nil {
		return err
	}
	d.welcome(routers)
	var model string
	var bases []string
	for _, r := range routers {
		m, err := d.waitForModels(ctx, r.base())
		if err != nil {
			return err
		}
		model, bases = m, append(bases, r.base())
	}
	phases := []*phase{
		{title: "round robin", policy: decision.RoundRobin},
		{title: "least busy", policy: decision.LeastRequests},
		{title: "KV-aware", policy: decision.PredictedTTFT},
	}
	for i, p := range phases {
		for _, r := range d.sims {
			r.engine.ResetPrefixCache()
		}
		if err := d.round(ctx, p, d.load(), bases, model, uint64(i)); err != nil {
			return err
		}
	}
	fork := &phase{title: "subagents", policy: decision.PredictedTTFT}
	if d.disaggregated {
		load := forkLoad()
		root := load
		root.Conversations = 1
		for _, r := range []struct {
			*phase
			loadgen.Config
		}{{&phase{title: "their agent", policy: fork.policy}, root}, {fork, load}} {
			if err := d.round(ctx, r.phase, r.Config, bases, model, 0); err != nil {
				return err
			}
		}
	}
	d.table(phases, time.Since(began))
	d.decisions(ctx, routers, model)
	d.splits(ctx, routers, fork)
	if !d.serve {
		return nil
	}
	d.goOn(routers, model)
	<-ctx.Done()
	return nil
}

// goOn says what to try while the fleet is up.
func (d *demo) goOn(routers []*demoRouter, model string) {
	at, base := routers[0].at, routers[0].base()
	fmt.Fprintf(d.out, "\nstill serving model %s; stop with Ctrl-C. Try:\n", model)
	fmt.Fprintf(d.out, "  curl -N %s/v1/chat/completions -H 'Content-Type: application/json' \\\n", base)
	fmt.Fprintf(d.out, "    -d '{\"model\":\"%s\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n", model)
	address := ""
	if grpc := dialableString(at.GRPC); grpc != defaultRemote {
		address = " --address " + grpc
	}
	fmt.Fprintf(d.out, "  kvpilot top%s\n  kvpilot choose%s --model %s --prompt 'Where would this go?'\n", address, address, model)
	fmt.Fprintf(d.out, "  a browser at http://%s/console/\n", dialableString(at.Admin))
	if len(routers) > 1 {
		fmt.Fprintf(d.out, "  curl -s %s/kvpilot/v1/decisions: decidedBy and askedBy name the routers of each\n", base)
	}
}

func (d *demo) welcome(routers []*demoRouter) {
	if len(d.sims) > 0 {
		fmt.Fprintf(d.out, "%d simulated replicas, each like a 70B model on four GPUs, %g times as fast:", len(d.sims), d.speed)
		for _, r := range d.sims {
			fmt.Fprintf(d.out, " %s", r.url)
		}
		fmt.Fprintln(d.out)
	}
	for _, r := range routers {
		name := r.name
		if len(routers) == 1 {
			name = "router"
		}
		if !d.serve {
			fmt.Fprintf(d.out, "%s: REST %s\n", name, r.base())
			continue
		}
		fmt.Fprintf(d.out, "%s: REST %s, gRPC %s, console http://%s/console/\n", name, r.base(), dialableString(r.at.GRPC), dialableString(r.at.Admin))
	}
	load := d.load()
	fmt.Fprintf(d.out, "load: %d conversations of %d turns, %d at once; %d applications, each with a system prompt of %d words; questions of about %d words, answers of at most %d tokens\n",
		load.Conversations, load.Turns, load.Concurrency, load.Tenants, load.SystemWords, load.UserWords, load.MaxTokens)
	if d.disaggregated && len(d.sims) > 1 {
		fmt.Fprintln(d.out, "sim-0 only computes prompts for the others, where the KV-aware rule finds that cheaper")
	}
	if !d.serve {
		fmt.Fprintln(d.out, "all of it ends with the demo; --serve keeps it running, with a console to look at")
	}
	fmt.Fprintln(d.out)
}

// load is one round's load, the same for each policy but for the words.
func (d *demo) load() loadgen.Config {
	load := loadgen.Config{
		Conversations: d.conversations, Turns: d.turns, Concurrency: d.concurrency,
		Tenants: 10, SystemWords: 1500, UserWords: 250, MaxTokens: 60,
	}
	if len(d.sims) == 0 { // unknown engines: short prompts, short answers
		load.SystemWords, load.UserWords, load.MaxTokens = 200, 60, 32
	}
	if d.disaggregated {
		load.Tenants, load.SystemWords, load.MaxTokens = load.Conversations, 5000, 200
	}
	return load
}

// forkLoad is the load of the round in which subagents of one agent come at once: all begin with its prompt.
func forkLoad() loadgen.Config {
	return loadgen.Config{Conversations: 43, Turns: 1, Concurrency: 43, Tenants: 1, SystemWords: 8000, UserWords: 400, MaxTokens: 60, Seed: uint64(time.Now().UnixNano()) << 1}
}

// round plays one round and shows its progress.
func (d *demo) round(ctx context.Context, p *phase, load loadgen.Config, bases []string, model string, n uint64) error {
	load.URL, load.Others, load.Model = bases[0], bases[1:], model
	load.Header = http.Header{"X-Kvpilot-Policy": {string(p.policy)}}
	if load.Seed == 0 {
		load.Seed = uint64(time.Now().UnixNano())<<1 + n
	}
	began := time.Now()
	total := load.Requests()
	shown := 0
	fmt.Fprintf(d.out, "%-12s ", p.title)
	err := loadgen.Run(ctx, load, func(r loadgen.Result) {
		p.Add(r)
		for ; shown < p.Requests*40/total; shown++ {
			fmt.Fprint(d.out, ".")
		}
	})
	p.Elapsed = time.Since(began)
	if err != nil {
		fmt.Fprintln(d.out)
		return err
	}
	fmt.Fprintf(d.out, " %d requests in %.1f s\n", p.Requests, p.Elapsed.Seconds())
	if p.Failed > 0 {
		return fmt.Errorf("%d of %d requests failed, the first one with: %w", p.Failed, p.Requests, p.FirstError)
	}
	return nil
}
