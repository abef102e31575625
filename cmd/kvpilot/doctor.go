package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/client"
	"github.com/kvpilot/kvpilot/cmd/internal/build"
	"github.com/kvpilot/kvpilot/cmd/internal/doctor"
	"github.com/kvpilot/kvpilot/cmd/internal/serve"
)

// newDoctorCommand tests a set-up.
func newDoctorCommand(env []string, out io.Writer) *cobra.Command {
	var settings serve.Settings
	var router string
	var noSend, asJSON bool
	var limit time.Duration
	r := &remote{out: out}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Test a set-up, and say what to change",
		Long: "Test the set-up that the settings describe, from this machine and with the parts that the router itself uses: settings and files,\n" +
			"the machine's limits, the router's addresses, discovery, TLS, keys, versions, models, metrics, tokenization, KV events, replays, clocks.\n\n" +
			"Settings come from the same places as those of kvpilot serve. Each replica gets one request for one token, with a prompt that no cache\n" +
			"holds, unless --no-send is given. With --server a running router is asked how it sees its replicas; no replica is asked then.\n\n" +
			"Exit codes: 0 when nothing failed, 1 when a check failed, 2 when the command itself was wrong.",
		Example: "  kvpilot doctor --config kvpilot.yaml\n  kvpilot doctor --replica http://10.0.0.7:8000 --replica http://10.0.0.8:8000\n  kvpilot doctor --server 10.0.0.2:9090 -o json",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.NoArgs(cmd, args); err != nil {
				return &exitError{2, err}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				r.output = "json"
			}
			if err := knownOutput(r.output); err != nil {
				return &exitError{2, err}
			}
			var results []doctor.Result
			if router != "" {
				r.address = router
				results = doctor.Remote(cmd.Context(), doctor.RemoteParams{
					Address: router, Version: build.Read().Version, Limit: limit,
					Ask: func(ctx context.Context, do func(context.Context, *client.Client) error) error { return r.ask(ctx, do) },
				})
			} else {
				results = doctor.Local(cmd.Context(), doctor.Params{Source: settings.Source(env), NoSend: noSend, Limit: limit})
			}
			report := doctor.Report{OK: !doctor.Failed(results), Version: build.Read().Version, Checks: results}
			write := report.WriteTable
			if r.output == "json" {
				write = report.WriteJSON
			}
			if err := write(out); err != nil {
				return err
			}
			if !report.OK {
				return &exitError{1, fmt.Errorf("the set-up has faults")}
			}
			return nil
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &exitError{2, unknownFlag(cmd, err)} })
	settings.Flags(cmd.Flags())
	r.flags(cmd, env)
	cmd.Flags().StringVar(&router, "server", "", "ask the running router at this gRPC address instead of testing settings; --key, --tls, --ca and --cert are for it")
	cmd.Flags().BoolVar(&noSend, "no-send", false, "send no request to replicas: leaves out the check blocks")
	cmd.Flags().BoolVar(&asJSON, "json", false, "the same as --output json")
	cmd.Flags().DurationVar(&limit, "limit", 30*time.Second, "time limit of each check")
	for _, name := range []string{"address", "timeout", "json"} {
		if err := cmd.Flags().MarkHidden(name); err != nil {
			panic(err) // it was declared above
		}
	}
	return cmd
}
