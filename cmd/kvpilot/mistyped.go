package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/kit/suggest"
)

// suggestionDistance is the edits between a mistyped command and one that cobra suggests.
const suggestionDistance = 2

// explainMistakes makes names that are no command an error, where cobra prints a help text and succeeds, and has the errors for
// mistyped commands, flags and arguments name the probable word.
func explainMistakes(root *cobra.Command) {
	root.SetFlagErrorFunc(unknownFlag)
	for _, cmd := range root.Commands() {
		explainArguments(root, cmd)
	}
}

func explainArguments(root, cmd *cobra.Command) {
	cmd.SuggestionsMinimumDistance = suggestionDistance
	switch {
	case cmd.Name() == "help":
		cmd.Args = func(_ *cobra.Command, args []string) error {
			found, rest, err := root.Find(args)
			if err == nil && len(rest) > 0 {
				err = unknownCommand(found, rest[0])
			}
			return err
		}
		return
	case !cmd.Runnable():
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		cmd.Args = cobra.NoArgs
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if err == nil || !strings.HasPrefix(err.Error(), "unknown command ") { // NoArgs' words for every argument
				return err
			}
			explained := unknownArgument(cmd, args[0])
			if cmd.HasAvailableSubCommands() {
				explained = unknownCommand(cmd, args[0])
			}
			if own, ok := errors.AsType[*exitError](err); ok {
				return &exitError{own.code, explained}
			}
			return explained
		}
	}
	for _, below := range cmd.Commands() {
		explainArguments(root, below)
	}
}

func unknownCommand(of *cobra.Command, name string) error {
	return fmt.Errorf("unknown command %q for %q%s", name, of.CommandPath(), suggest.Question(of.SuggestionsFor(name)))
}

func unknownArgument(cmd *cobra.Command, argument string) error {
	hint := ""
	if cmd.Flags().Lookup("replica") != nil && strings.Contains(argument, "://") {
		hint = suggest.Question([]string{"--replica " + argument})
	}
	return fmt.Errorf("%s takes no arguments, not %q%s", cmd.CommandPath(), argument, hint)
}

// unknownFlag adds to the error for a flag the probable one: another flag, or for serve a setting.
func unknownFlag(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	name := unknown.GetSpecifiedName()
	if letters := unknown.GetSpecifiedShortnames(); len(letters) > 1 { // -config
		name = letters
	}
	name, _, _ = strings.Cut(name, "=")
	var meant, flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			flags = append(flags, f.Name)
		}
	})
	for _, near := range suggest.Near(name, flags) {
		meant = append(meant, "--"+near)
	}
	if meant == nil && cmd.Flags().Lookup("set") != nil {
		meant = settingFor(name)
	}
	return fmt.Errorf("%w%s (%s --help lists the flags)", err, suggest.Question(meant), cmd.CommandPath())
}

// settingFor returns how --set sets the setting that a flag is named for: --listen.http, --listen-http or --log-level.
func settingFor(flag string) []string {
	words := strings.NewReplacer(".", "-", "_", "-")
	byWords := map[string]string{}
	var known []string
	for _, path := range config.Paths() {
		byWords[words.Replace(path)] = path
		known = append(known, words.Replace(path))
	}
	flag = words.Replace(flag)
	meant := suggest.Near(flag, known)
	if meant == nil {
		meant = suggest.Under(flag, "-", known)
	}
	for i, name := range meant {
		meant[i] = "--set " + byWords[name] + "=VALUE"
	}
	return meant
}
