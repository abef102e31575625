package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kvpilot/kvpilot/sim/replay"
)

// addScaling adds the arguments of replay's autoscaler.
func (f *replayFlags) addScaling(flags *pflag.FlagSet) {
	f.Scaling = replay.DefaultScaling()
	flags.StringVar(&f.wave, "waves", "", "period:low, such as 20m:0.1: the arrival rate rises and falls over the period, around --rate, from a share of its peak")
	flags.StringSliceVar(&f.scalers, "autoscale", nil, "autoscalers under predicted-ttft, separated by commas: wanted (by the router's metric of wanted replicas), queue:N or requests:N (waiting, or all requests per replica), fixed:N; --replicas is the most")
	flags.Var(secondsFlag{&f.Scaling.Start}, "start-time", "time from the order of a replica until it is ready")
	flags.IntVar(&f.Scaling.Least, "min-replicas", f.Scaling.Least, "with --autoscale, the smallest number of replicas, with which a run begins")
	flags.Var(secondsFlag{&f.Scaling.Sync}, "sync-period", "time between two looks of the autoscaler")
	flags.Var(secondsFlag{&f.Scaling.Stabilize}, "stabilization", "time over which the highest number counts before replicas are stopped")
	flags.Var(secondsFlag{&f.Scaling.Down}, "scale-down-period", "least time between two replicas that are stopped")
	flags.Float64Var(&f.Scaling.Tolerance, "tolerance", f.Scaling.Tolerance, "relative difference to the number of replicas that the autoscaler ignores")
	flags.Float64Var(&f.Scaling.Utilization, "utilization", f.Scaling.Utilization, "share of the replicas' time that is to be used, as scaling.utilization")
}

// completeScaling reads the rules and the wave.
func (f *replayFlags) completeScaling() error {
	for _, text := range f.scalers {
		rule, err := replay.ParseScaleRule(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("--autoscale: %w", err)
		}
		f.Scaling.Rules = append(f.Scaling.Rules, rule)
	}
	if f.wave == "" {
		return nil
	}
	var err error
	if f.Wave, err = replay.ParseWave(f.wave); err != nil {
		return fmt.Errorf("--waves: %w", err)
	}
	return nil
}
