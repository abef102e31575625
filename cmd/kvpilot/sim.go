package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/sim/enginesim/core"
)

// simFlags are the flags of kvpilot sim.
type simFlags struct {
	cfg    enginesim.Config
	ports  simPorts
	count  int
	faults string
	// role is the label that the router is to see; an engine with NIXL plays the role that each request names, one with Mooncake this one alone.
	role string
	// seed makes block hashes; zero draws one for each replica.
	seed uint64
	// noEvents and noReplay switch the ZMQ sockets off.
	noEvents, noReplay bool
}

// newSimCommand serves simulated replicas until it is stopped.
func newSimCommand() *cobra.Command {
	f := simFlags{cfg: enginesim.DefaultConfig(), ports: simPorts{replicaShift: 1}}
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Serve simulated vLLM replicas",
		Long: `Serve simulated vLLM replicas: real HTTP, real KV events over ZMQ, a real block cache, modelled time.

Send requests to http://HOST:PORT as to vLLM. /sim/state, /sim/faults, /sim/restart and /sim/requests control
the simulator; docs/simulator.md describes them.`,
		Example: `  kvpilot sim --port 8000
  kvpilot sim --count 4 --speed 10 --version 0.12.0
  kvpilot sim --count 2 --connector nixl
  kvpilot sim --faults '{"die_after":5,"times":1}'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.ports.follow(cmd.Flags().Changed)
			return runSim(cmd.Context(), f, cmd.OutOrStdout())
		},
	}
	c, flags := &f.cfg, cmd.Flags()
	flags.StringVar(&f.ports.host, "host", "127.0.0.1", "address to listen on")
	flags.IntVar(&f.ports.http, "port", 8000, "HTTP port; each further replica takes the next one")
	flags.IntVar(&f.ports.events, "events-port", 5557, "ZMQ port of the KV events; each further rank takes the next one; as far from 5557 as --port is from 8000 if not given")
	flags.IntVar(&f.ports.replay, "replay-port", 5657, "ZMQ port of the replays; each further rank takes the next one; as far from 5657 as --port is from 8000 if not given")
	flags.BoolVar(&f.noEvents, "no-events", false, "publish no KV events")
	flags.BoolVar(&f.noReplay, "no-replay", false, "answer no replay requests")
	flags.IntVar(&f.count, "count", 1, "number of replicas")
	flags.StringSliceVar(&c.Models, "model", c.Models, "served model names")
	flags.StringSliceVar(&c.Adapters, "adapter", nil, "LoRA adapters, as further model names")
	flags.BoolVar(&c.AdapterUpdates, "adapter-updates", false, "serve /v1/load_lora_adapter and /v1/unload_lora_adapter, as with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
	flags.IntVar(&c.Core.Adapters.Slots, "max-loras", 0, "LoRA adapters that GPU memory holds and a step computes; 0: without limit, and loading them takes no time")
	flags.IntVar(&c.Core.Adapters.Host, "max-cpu-loras", 0, "LoRA adapters that host memory holds, at least --max-loras")
	flags.DurationVar(&c.Core.Adapters.Load, "adapter-load-time", 200*time.Millisecond, "time to read a LoRA adapter into host memory")
	flags.DurationVar(&c.Core.Adapters.Activate, "adapter-copy-time", 20*time.Millisecond, "time to copy one from host to GPU memory")
	flags.StringVar(&c.Version, "version", c.Version, "vLLM version to imitate")
	flags.BoolVar(&c.Rust, "rust", false, "imitate the Rust front end")
	flags.IntVar(&c.Ranks, "ranks", c.Ranks, "data-parallel ranks of each replica")
	flags.IntVar(&c.Core.BlockSize, "block-size", c.Core.BlockSize, "tokens per KV block")
	flags.IntVar(&c.Core.Blocks, "blocks", c.Core.Blocks, "KV blocks of each rank")
	f.addTiers(flags)
	flags.IntVar(&c.Core.MaxModelLen, "max-model-len", c.Core.MaxModelLen, "context length in tokens")
	flags.IntVar(&c.Core.MaxBatchedTokens, "max-batched-tokens", c.Core.MaxBatchedTokens, "token budget of a step")
	flags.IntVar(&c.Core.MaxSeqs, "max-seqs", c.Core.MaxSeqs, "concurrently running sequences")
	flags.Uint64Var(&f.seed, "hash-seed", 0, "seed of the block hashes of all replicas, as PYTHONHASHSEED is for vLLM's; 0: a random one for each")
	flags.BoolVar(&c.Core.PrefixCaching, "prefix-caching", c.Core.PrefixCaching, "keep the blocks of finished requests")
	flags.Float64Var(&c.Core.Timing.PrefillRate, "prefill-rate", c.Core.Timing.PrefillRate, "prompt tokens per second at short context")
	flags.Float64Var(&c.Core.Timing.HalfContext, "half-context", c.Core.Timing.HalfContext, "context in tokens at which a prompt token costs twice as much")
	flags.DurationVar(&c.Core.Timing.Base, "step-time", c.Core.Timing.Base, "time of an empty step")
	flags.DurationVar(&c.Core.Timing.PerSequence, "sequence-time", c.Core.Timing.PerSequence, "time that each decoding sequence adds to a step")
	flags.DurationVar(&c.Core.Timing.PerContextToken, "context-time", c.Core.Timing.PerContextToken, "time that each cached token of a decoding sequence adds to a step")
	flags.Float64Var(&c.Core.Timing.Speed, "speed", c.Core.Timing.Speed, "speed, relative to the modelled time")
	flags.IntVar(&c.MeanAnswer, "mean-answer", c.MeanAnswer, "mean tokens of an answer without a limit")
	flags.BoolVar(&c.TokenDetails, "prompt-tokens-details", c.TokenDetails, "report cached_tokens")
	flags.BoolVar(&c.SleepMode, "sleep-mode", c.SleepMode, "serve /sleep, /wake_up and /is_sleeping, as with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1")
	flags.BoolVar(&c.ScaleOut, "scale-out", c.ScaleOut, "serve /render where the version asks for --enable-scale-out")
	flags.BoolVar(&c.RequestIDHeader, "request-id-headers", false, "answer X-Request-Id")
	flags.BoolVar(&c.BytesHashes, "bytes-hashes", false, "write event hashes as byte strings")
	flags.StringVar(&c.Topic, "topic", "", "topic of the KV events")
	flags.IntVar(&c.ReplayBuffer, "replay-buffer", c.ReplayBuffer, "number of event batches kept for replays")
	flags.DurationVar(&c.KeepAlive, "keep-alive", c.KeepAlive, "how long idle connections stay open; 0 closes each after its answer")
	flags.StringVar(&c.APIKey, "api-key", "", "key that /v1 requires")
	flags.StringVar(&c.Transfer.Connector, "connector", "", "KV connector: nixl, nixl-push or mooncake passes the cache of prompts on to other simulated replicas")
	flags.StringVar(&f.role, "role", "", "role in the labels that are printed for the router: prefill, decode or both; needs --connector")
	flags.DurationVar(&c.Transfer.Start, "transfer-start", c.Transfer.Start, "time of a transfer of no tokens from another replica")
	flags.DurationVar(&c.Transfer.PerToken, "transfer-token-time", c.Transfer.PerToken, "time that each token adds to a transfer")
	flags.DurationVar(&c.Transfer.Lease, "transfer-lease", c.Transfer.Lease, "how long blocks that no replica reads are kept")
	flags.StringVar(&f.faults, "faults", "", "initial faults, as JSON; see docs/simulator.md")
	return cmd
}

// addTiers adds the flags of tiers below the GPU.
func (f *simFlags) addTiers(flags *pflag.FlagSet) {
	l := &f.cfg.Core.Lower
	flags.IntVar(&l.Host.Blocks, "host-blocks", 0, "KV blocks that each rank keeps in host memory, as vLLM's OffloadingConnector does; 0: none")
	flags.DurationVar(&l.Host.Start, "host-load-start", l.Host.Start, "time of a load of no tokens from host memory")
	flags.DurationVar(&l.Host.PerToken, "host-load-token-time", l.Host.PerToken, "time that each token adds to it")
	flags.IntVar(&l.Store.Blocks, "store-blocks", 0, "KV blocks of a store that the replicas of this process share; 0: none. Their block hashes have one seed")
	flags.DurationVar(&l.Store.Start, "store-load-start", l.Store.Start, "time of a load of no tokens from the store")
	flags.DurationVar(&l.Store.PerToken, "store-load-token-time", l.Store.PerToken, "time that each token adds to it")
	flags.BoolVar(&l.SelfDescribing, "self-describing-events", false, "events of these tiers have token ids and parents, not block hashes only (self_describing_kv_events)")
}

// follow moves the ZMQ ports that were not given with --port, so that a second simulator on the host needs no other flag.
func (p *simPorts) follow(given func(flag string) bool) {
	if !given("port") {
		return
	}
	for flag, port := range map[string]*int{"events-port": &p.events, "replay-port": &p.replay} {
		if given(flag) {
			continue
		}
		if *port += p.http - 8000; p.http == 0 || *port < 1 || *port > 65535 {
			*port = 0 // a free one
		}
	}
}

func runSim(ctx context.Context, f simFlags, out io.Writer) error {
	var faults enginesim.Faults
	if f.faults != "" {
		if err := json.Unmarshal([]byte(f.faults), &faults, json.RejectUnknownMembers(true)); err != nil {
			return fmt.Errorf("--faults: %w", err)
		}
	}
	if _, known := replica.ReadRole(f.role); !known || f.role != "" && f.cfg.Transfer.Connector == "" {
		return fmt.Errorf("--role must be prefill, decode or both, with --connector, not %q", f.role)
	}
	if f.cfg.Transfer.Connector == replica.Mooncake.String() {
		f.cfg.Transfer.KVRole = map[string]string{"prefill": "kv_producer", "decode": "kv_consumer"}[f.role]
	}
	if f.noEvents {
		f.ports.events = -1
	}
	if f.noReplay {
		f.ports.replay = -1
	}
	f.cfg.Core.Lower.Shared = core.NewStore(&f.cfg.Core)
	if f.cfg.Core.Lower.Shared != nil && f.seed == 0 {
		f.seed = uint64(time.Now().UnixNano())
	}
	var list []*simReplica
	for n := range f.count {
		cfg := f.cfg
		if cfg.Core.Seed = f.seed; f.seed == 0 {
			cfg.Core.Seed = uint64(time.Now().UnixNano()) + uint64(n)
		}
		r, err := newSimReplica(ctx, cfg, f.ports, n, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		r.engine.SetFaults(faults)
		list = append(list, r)
		fmt.Fprintf(out, "%s  model %s, as vLLM %s", r.url, strings.Join(cfg.Models, ", "), cfg.Version)
		if len(r.events) > 0 {
			fmt.Fprintf(out, ", events %s", strings.Join(r.events, " "))
		}
		if len(r.replays) > 0 {
			fmt.Fprintf(out, ", replays %s", strings.Join(r.replays, " "))
		}
		if labels := f.labels(r.url); len(labels) > 0 {
			fmt.Fprintf(out, ", labels {%s}", strings.Join(labels, ", "))
		}
		fmt.Fprintln(out)
	}
	return runSims(ctx, list)
}

// labels are the labels of the replica at base for the router.
func (f *simFlags) labels(base string) (list []string) {
	if c := f.cfg.Transfer.Connector; c != "" {
		list = append(list, replica.LabelConnector+": "+c, replica.LabelRole+": "+cmp.Or(f.role, replica.AnyRole.String()))
		if c == replica.Mooncake.String() { // the bootstrap server is at the same address
			list = append(list, replica.LabelBootstrap+": "+strconv.Quote(base))
		}
	}
	if f.cfg.Core.Lower.Shared != nil {
		list = append(list, replica.LabelStore+": sim")
	}
	return list
}
