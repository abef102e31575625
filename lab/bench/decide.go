package bench

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/lab/bench/decidebench"
)

// newDecideCommand measures decisions as callers of the service get them.
func newDecideCommand() *cobra.Command {
	var c decidebench.Config
	cmd := figuresCommand("decide", "Measure decisions of a router in a process of its own, over gRPC and REST",
		func(cmd *cobra.Command) (*decidebench.Result, error) {
			self, err := os.Executable()
			if err != nil {
				return nil, err
			}
			c.Self, c.Progress = []string{self}, cmd.ErrOrStderr()
			return decidebench.Run(cmd.Context(), c)
		}, printDecideBench)
	cmd.Long = `Starts a router on one core before replicas whose KV events have filled its index, and asks it for decisions
with token ids, no prompt twice: packed over gRPC, as a completions body over REST, as ChooseReplica's JSON ("typed"), without a booking and with one that is released
by a second call. Processor time is the router's, while all clients ask; latencies are those of a client alone.`
	f := cmd.Flags()
	f.IntVar(&c.Ranks, "ranks", 64, "replicas of one rank each")
	f.IntVar(&c.Blocks, "blocks", 1_000_000, "blocks in the index")
	f.IntVar(&c.Tokens, "tokens", 8192, "token ids of a prompt")
	f.IntVar(&c.Calls, "calls", 4000, "decisions of each case in a round; a quarter as many for the latencies")
	f.IntVar(&c.Clients, "clients", 16, "clients that ask at the same time")
	f.IntVar(&c.Rounds, "rounds", 3, "rounds; processor time and rate are their medians")
	f.IntVar(&c.Core, "core", 0, "the processor that the router may use, by taskset; -1: all")
	f.StringSliceVar(&c.Cases, "cases", nil, "which cases (default all): "+strings.Join(decidebench.Names(), ", "))
	f.StringVar(&c.Profiles, "profiles", "", "folder for CPU profiles of the router, one per case")
	return cmd
}

func printDecideBench(w io.Writer, r *decidebench.Result) error {
	for _, c := range r.Cases {
		if _, err := fmt.Fprintf(w, "%-18s %6.0f µs of processor time, %6.0f/s; p50 %.0f µs, p99 %.0f µs\n", c.Name, c.CPU, c.Rate, c.P50, c.P99); err != nil {
			return err
		}
	}
	if r.CPURatio == 0 || r.CPURatioBook == 0 {
		return nil // not all of their cases were measured
	}
	_, err := fmt.Fprintf(w, "gRPC by REST       %.2f, with book and release %.2f\n", r.CPURatio, r.CPURatioBook)
	return err
}
