// Command kvpilot-bench measures what docs/performance.md promises of kvpilot, on this machine.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/cmd/internal/serve"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kvpilot-bench:", err)
		os.Exit(1)
	}
}

// run is the whole program with its surroundings passed in, so that tests can start it.
func run(ctx context.Context, args, env []string, out, errOut io.Writer) error {
	root := newRootCommand(env, out, errOut)
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

// newRootCommand joins the benchmarks: each measures one promise of docs/performance.md.
func newRootCommand(env []string, out, errOut io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "kvpilot-bench",
		Short:         "Measure kvpilot on this machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(out)
	root.SetErr(errOut)
	root.AddCommand(newBenchIndexCommand())
	root.AddCommand(newBenchEventsCommand())
	root.AddCommand(newBenchChooseCommand())
	root.AddCommand(newBenchDecideCommand())
	root.AddCommand(newBenchTokenizeCommand())
	root.AddCommand(newBenchStreamCommand())
	root.AddCommand(newBenchCostCommand())
	root.AddCommand(newBenchInFlightCommand())
	root.AddCommand(newBenchObserveCommand())
	root.AddCommand(newBenchTenantsCommand())
	router := serve.Command(env, out, errOut) // what is measured, as a process of its own
	router.Hidden = true
	root.AddCommand(router)
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
