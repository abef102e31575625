package main

import (
	"cmp"
	"errors"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvpilot/kvpilot/cmd/internal/build"
	"github.com/kvpilot/kvpilot/cmd/internal/serve"
)

// newRootCommand joins the subcommands. Each lives in a file of its own and reads the
// environment only through env.
func newRootCommand(env []string, out, errOut io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "kvpilot",
		Short:         "A KV-cache-aware inference router for vLLM",
		Version:       build.Read().String(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(out)
	root.SetErr(errOut)
	root.AddCommand(serve.Command(env, out, errOut))
	root.AddCommand(newTopCommand(env, out), newReplicasCommand(env, out), newDrainCommand(env, out), newUndrainCommand(env, out), newSplitsCommand(env, out), newExplainCommand(env, out), newChooseCommand(env, out))
	root.AddCommand(newReloadCommand(env, out), newConfigCommand(env, out))
	root.AddCommand(&cobra.Command{
		Use: "bench", Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("the benchmarks are a separate program: run go run ./cmd/kvpilot-bench in kvpilot's sources")
		},
	})
	root.AddCommand(newInitCommand(out), newDoctorCommand(env, out), newHealthCommand(env, out), newReplayCommand(), newKeyCommand(out), newSimCommand(), newDemoCommand(env, out, errOut), newVersionCommand(out))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	explainMistakes(root)
	return root
}

// formerly lets flags be set by the names that they had in earlier versions.
func formerly(flags *pflag.FlagSet, names map[string]string) {
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(cmp.Or(names[name], name))
	})
}
