package bench

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/lab/bench/tenantbench"
)

// newTenantsCommand measures how tenants share a fleet.
func newTenantsCommand() *cobra.Command {
	o := tenantbench.Defaults()
	var log bool
	cmd := &cobra.Command{
		Use:   "tenants",
		Short: "Measure how two tenants of weights 1 and 3 share a fleet, and how long a third one waits",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var to io.Writer // nil: the processes' output goes to the null device
			if log {
				to = cmd.ErrOrStderr()
			}
			return tenantbench.Run(cmd.Context(), o, cmd.OutOrStdout(), to)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Self, "kvpilot", "bin/kvpilot", "the kvpilot to run as router and as replicas; make build makes it")
	flags.IntVar(&o.Replicas, "replicas", o.Replicas, "simulated replicas")
	flags.IntVar(&o.Loops, "loops", o.Loops, "requests that each busy tenant has in progress")
	flags.IntVar(&o.Prompt, "prompt", o.Prompt, "mean tokens of a prompt")
	flags.IntVar(&o.Answer, "answer", o.Answer, "tokens of an answer")
	flags.DurationVar(&o.Warm, "warm", o.Warm, "time before anything counts")
	flags.DurationVar(&o.For, "for", o.For, "time that counts")
	flags.DurationVar(&o.Alone, "alone", o.Alone, "time that the third tenant has the fleet to itself")
	flags.DurationVar(&o.Every, "every", o.Every, "mean time between the third tenant's requests")
	flags.StringArrayVar(&o.Set, "set", nil, "a setting of the router, as kvpilot serve --set")
	flags.StringArrayVar(&o.Sim, "sim", nil, "a flag of the replicas, as --sim=--prefill-rate=4000")
	flags.BoolVar(&log, "log", false, "show what router and replicas say")
	return cmd
}
