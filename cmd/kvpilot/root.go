package main

import (
	"io"
	"runtime"

	"github.com/spf13/cobra"
)

// newRootCommand joins the subcommands. Each lives in a file of its own and reads the
// environment only through env.
func newRootCommand(env []string, out, errOut io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "kvpilot",
		Short:         "A KV-cache-aware inference router for vLLM",
		Version:       version() + ", " + runtime.Version() + " on " + runtime.GOOS + "/" + runtime.GOARCH,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(out)
	root.SetErr(errOut)
	root.AddCommand(newServeCommand(env, out, errOut))
	root.AddCommand(newTopCommand(env, out), newReplicasCommand(env, out), newExplainCommand(env, out), newChooseCommand(env, out))
	root.AddCommand(newReloadCommand(env, out), newConfigCommand(env, out))
	root.AddCommand(newBenchCommand())
	root.AddCommand(newReplayCommand())
	root.AddCommand(newSimCommand())
	root.AddCommand(newDemoCommand(env, out, errOut))
	return root
}
