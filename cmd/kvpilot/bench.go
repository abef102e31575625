package main

import "github.com/spf13/cobra"

// newBenchCommand joins the benchmarks: each measures one promise of docs/performance.md.
func newBenchCommand() *cobra.Command {
	bench := &cobra.Command{
		Use:   "bench",
		Short: "Measure kvpilot on this machine",
	}
	bench.AddCommand(newBenchIndexCommand())
	bench.AddCommand(newBenchEventsCommand())
	bench.AddCommand(newBenchChooseCommand())
	bench.AddCommand(newBenchTokenizeCommand())
	bench.AddCommand(newBenchStreamCommand())
	bench.AddCommand(newBenchObserveCommand())
	bench.AddCommand(newBenchTenantsCommand())
	return bench
}
