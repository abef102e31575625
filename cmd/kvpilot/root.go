package main

import (
	"errors"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/cmd/internal/serve"
)

// newRootCommand joins the subcommands. Each lives in a file of its own and reads the
// environment only through env.
func newRootCommand(env []string, out, errOut io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "kvpilot",
		Short:         "A KV-cache-aware inference router for vLLM",
		Version:       serve.Version() + ", " + runtime.Version() + " on " + runtime.GOOS + "/" + runtime.GOARCH,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(out)
	root.SetErr(errOut)
	root.AddCommand(serve.Command(env, out, errOut))
	root.AddCommand(newTopCommand(env, out), newReplicasCommand(env, out), newExplainCommand(env, out), newChooseCommand(env, out))
	root.AddCommand(newReloadCommand(env, out), newConfigCommand(env, out))
	root.AddCommand(&cobra.Command{
		Use: "bench", Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("the benchmarks are a separate program: run go run ./cmd/kvpilot-bench in kvpilot's sources")
		},
	})
	root.AddCommand(newReplayCommand(), newKeyCommand(out))
	root.AddCommand(newSimCommand())
	root.AddCommand(newDemoCommand(env, out, errOut))
	return root
}
