package bench

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/lab/bench/eventbench"
	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// newEventsCommand measures the way of KV events from the sockets into the index.
func newEventsCommand() *cobra.Command {
	c := eventbench.Config{Start: startEngines}
	cmd := figuresCommand("events", "Measure KV events from the engines' sockets to the index: blocks per second, and how soon they are visible",
		func(cmd *cobra.Command) (*eventbench.Result, error) {
			c.Progress = cmd.ErrOrStderr()
			return eventbench.Run(cmd.Context(), c)
		}, printEventBench)
	cmd.Long = `Starts a process that publishes KV events in vLLM's form as so many engines, follows their
sockets, and applies what comes to an index. Only this process's processor time counts.

Delays are counted from the moment before an engine wrote the batch ("visible") and from when it was
due ("from due"), which includes that the engines' process may have come late. Their sum is in no
other figure: the load is an open loop, and what is late is sent at once.`
	f := cmd.Flags()
	f.IntVar(&c.Engines, "engines", 16, "engines that publish")
	f.IntVar(&c.Blocks, "blocks", 3_000_000, "blocks stored, and as many removed, as fast as they are accepted")
	f.IntVar(&c.Rate, "rate", 100_000, "blocks stored per second, and as many removed, while delays are measured")
	f.DurationVar(&c.Steady, "steady", 10*time.Second, "duration of the measurement of delays")
	f.IntVar(&c.Burst, "burst", 0, "blocks stored in a burst, none twice, for memory and processor time; 0: no burst")
	f.StringVar(&c.Profiles, "profiles", "", "folder for CPU profiles of each phase and a profile of the burst's allocations")
	f.StringVar(&c.Dynamo, "dynamo", "", "Python with ai-dynamo-runtime, pydantic and uvloop from PyPI: measure Dynamo's selection service as well")
	cmd.AddCommand(newEnginesCommand())
	return cmd
}

// newEnginesCommand is the engines' process.
func newEnginesCommand() *cobra.Command {
	var l eventbench.Load
	cmd := &cobra.Command{
		Use:    "engines",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return eventbench.Publish(cmd.Context(), l, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().IntVar(&l.Engines, "engines", 1, "")
	cmd.Flags().IntVar(&l.Batches, "batches", 1, "")
	cmd.Flags().IntVar(&l.Rate, "rate", 0, "")
	cmd.Flags().BoolVar(&l.Fresh, "fresh", false, "")
	return cmd
}

func startEngines(ctx context.Context, l eventbench.Load) (*measure.Child, error) {
	return measure.StartSelf(ctx, "events", "engines",
		"--engines", strconv.Itoa(l.Engines), "--batches", strconv.Itoa(l.Batches), "--rate", strconv.Itoa(l.Rate), "--fresh="+strconv.FormatBool(l.Fresh))
}

func printEventBench(w io.Writer, r *eventbench.Result) error {
	if b := r.Burst; b != nil {
		_, err := fmt.Fprintf(w, `burst          %d blocks, %.2f M/s, %.0f ns of processor time each; index %.1f B per block
memory         resident above the index %.1f B per block at most, %.1f B in the end; queues %.1f MiB at most
`, b.Blocks, b.BlocksPerS/1e6, b.CPUPerBlock, b.Index, b.AbovePeak, b.AboveEnd, float64(b.QueuedPeak)/(1<<20))
		if err != nil {
			return err
		}
	}
	if d := r.Dynamo; d != nil {
		_, err := fmt.Fprintf(w, `dynamo         %.0f ns of processor time per block, %.2f times ours; burst %.0f ns, %.2f times ours, memory %.1f B per block, index included
`, d.CPUPerBlock, d.Ratio, d.BurstCPU, d.BurstRatio, d.BurstMemory)
		if err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, `engines        %d
as fast as can %.2f M blocks/s, %.2f M per second of processor time (%d blocks)
processor time %.0f ns per block, %.0f ns with one core: two cores are worth %.2f
visible        p50 %.0f µs, p99 %.0f µs, p99.9 %.0f µs, max %.0f µs at %.0f blocks/s stored and removed (%.0f asked for), %.0f %% of a processor
from due       p50 %.0f µs, p99 %.0f µs; the engines' process was late by p99 %.0f µs
the machine    a thread that only sleeps wakes up p99 %.0f µs late
`, r.Engines, r.BlocksPerS/1e6, r.BlocksPerCPUS/1e6, r.Blocks, r.CPUPerBlock, r.CPUPerBlockOne, r.ScalingCPU,
		r.VisibleP50, r.VisibleP99, r.VisibleP999, r.VisibleMax, r.AchievedPerS, r.OfferedPerS, 100*r.SteadyCPUShare,
		r.FromDueP50, r.FromDueP99, r.PublishLateP99, r.OversleepP99)
	return err
}
