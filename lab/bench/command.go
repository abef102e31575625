// Package bench is the command kvpilot-bench: each of its benchmarks measures one promise of docs/performance.md.
package bench

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"
)

// Command joins the benchmarks. Some start this program again, as "serve" for the router that they measure: the caller adds it.
func Command() *cobra.Command {
	root := &cobra.Command{
		Use:           "kvpilot-bench",
		Short:         "Measure kvpilot on this machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(
		newIndexCommand(), newEventsCommand(), newChooseCommand(), newDecideCommand(), newTokenizeCommand(),
		newStreamCommand(), newFollowCommand(), newCostCommand(), newInFlightCommand(), newObserveCommand(), newTenantsCommand(),
	)
	return root
}

// figuresCommand is a benchmark that prints its figures, as JSON when asked to.
func figuresCommand[figures any](use, short string, run func(*cobra.Command) (*figures, error), print func(io.Writer, *figures) error) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := run(cmd)
		if err != nil {
			return err
		}
		if !asJSON {
			return print(cmd.OutOrStdout(), f)
		}
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(f)
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
