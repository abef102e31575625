package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/lab/bench/streambench"
)

// newStreamCommand measures the way of streams and requests through kvpilot.
func newStreamCommand() *cobra.Command {
	var o streambench.Options
	cmd := &cobra.Command{
		Use:   "stream",
		Short: "Compare kvpilot with httputil.ReverseProxy and other proxies, as processes of their own",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runStreamBench(cmd, o, streambench.Run)
		},
	}
	addStreamBenchFlags(cmd, &o, 9, "rounds of each timed case; CPU time counts by its median, latencies of all rounds together")
	cmd.Flags().StringSliceVar(&o.Subjects, "subjects", []string{streambench.ReverseProxy, streambench.Kvpilot, streambench.Direct}, "what takes part: direct, reverseproxy, kvpilot, kvpilot-followed, kvpilot-unfollowed, relay-lean, nginx, haproxy")
	cmd.Flags().StringSliceVar(&o.Cases, "cases", nil, "which cases (default all): stream-64, stream-256, stream-512, allocs, small-request, large-request, idle, aborted")
	cmd.Flags().StringVar(&o.Profiles, "profiles", "", "folder for CPU profiles of kvpilot, one per timed case")
	cmd.AddCommand(newRoleCommand())
	return cmd
}

// newFollowCommand measures the cost of following streams.
func newFollowCommand() *cobra.Command {
	var o streambench.Options
	cmd := &cobra.Command{
		Use:   "follow",
		Short: "Compare streams that are followed, so that another replica can resume them, with streams that are not",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runStreamBench(cmd, o, streambench.Follow)
		},
	}
	addStreamBenchFlags(cmd, &o, 15, "turns of each router in each case; the medians count")
	cmd.Flags().StringVar(&o.Profiles, "profiles", "", "folder for CPU profiles of both routers")
	return cmd
}

// addStreamBenchFlags adds the flags that both benchmarks of processes have.
func addStreamBenchFlags(cmd *cobra.Command, o *streambench.Options, rounds int, counted string) {
	cmd.Flags().BoolVar(&o.JSON, "json", false, "write JSON instead of a table")
	cmd.Flags().IntVar(&o.Rounds, "rounds", rounds, counted)
	cmd.Flags().Float64Var(&o.Scale, "scale", 1, "share of the full number of streams and requests")
}

// runStreamBench runs one of them; it starts its processes from this binary.
func runStreamBench(cmd *cobra.Command, o streambench.Options, run func(context.Context, streambench.Options, io.Writer, io.Writer) error) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o.Self = []string{self, "stream", "role"}
	o.Serve = []string{self, "serve"}
	return run(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
}

// newObserveCommand measures the cost of traces, the console and scrapes.
func newObserveCommand() *cobra.Command {
	var o streambench.Options
	cmd := &cobra.Command{
		Use:   "observe",
		Short: "Measure what traces, the console and scrapes cost a router",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runStreamBench(cmd, o, streambench.Observe)
		},
	}
	addStreamBenchFlags(cmd, &o, 40, "turns of each router with small requests; those with streams are a fifth, of the console a third")
	cmd.Flags().StringSliceVar(&o.Cases, "cases", nil, "which parts (default all): traces, console, scrape")
	cmd.Flags().StringVar(&o.Profiles, "profiles", "", "folder for CPU profiles of the routers with and without traces")
	return cmd
}

// newCostCommand measures the cost of a request to each router.
func newCostCommand() *cobra.Command {
	var o streambench.Options
	cmd := &cobra.Command{
		Use:   "cost",
		Short: "Compare the CPU time, memory and latency that a request costs kvpilot and other routers, each on one core",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runStreamBench(cmd, o, streambench.Cost)
		},
	}
	addStreamBenchFlags(cmd, &o, 5, "samples of each case; the median counts")
	cmd.Flags().StringSliceVar(&o.Subjects, "subjects", streambench.CostSubjects, "which routers; those that are not installed are left out")
	cmd.Flags().StringSliceVar(&o.Cases, "cases", nil, "which cases (default all): memory, 1k, 32k-new, 256k-new, 32k-shared-90, stream-64, stream-256")
	cmd.Flags().StringVar(&o.Peers, "peers", "", "folder with a virtual environment for each router from PyPI; else they must be on PATH")
	cmd.Flags().BoolVar(&o.Install, "install", false, "install the routers that are missing: from PyPI into --peers, and as root from Debian")
	return cmd
}

// newRoleCommand has the roles that the benchmark starts as processes of their own.
func newRoleCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "role NAME [UPSTREAM]",
		Hidden: true,
		Args:   cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, out := cmd.Context(), cmd.OutOrStdout()
			target := ""
			if len(args) > 1 {
				target = args[1]
			}
			switch args[0] {
			case "upstream":
				if target == "events" {
					return streambench.ServeUpstreamWithEvents(ctx, out)
				}
				return streambench.ServeUpstream(ctx, out)
			case "upstreams":
				n, err := strconv.Atoi(target)
				if err != nil {
					return fmt.Errorf("how many upstreams: %w", err)
				}
				return streambench.ServeUpstreams(ctx, n, out)
			case "collector":
				return streambench.ServeCollector(ctx, out)
			case streambench.ReverseProxy:
				return streambench.ServeReverseProxy(ctx, target, out)
			case streambench.RelayLean:
				return streambench.ServeRelay(ctx, target, out)
			}
			return fmt.Errorf("no role %q", args[0])
		},
	}
}
