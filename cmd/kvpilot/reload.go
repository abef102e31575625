package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// exitRefused is how the process ends when the router was reached and did not take the settings.
const exitRefused = 2

// exitError ends the process with a code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// newReloadCommand has a running router read its settings again.
func newReloadCommand(env []string, out io.Writer) *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Reload the settings of a running router",
		Long: "Reload the settings of a running router: check all of them, and apply those that need no restart.\n\n" +
			"If one is invalid, none is applied and the old ones stay in force. Requests in progress keep the settings they started with.\n" +
			"docs/config.md marks the settings that need a restart. Where API keys are in use, an admin key is required.\n\n" +
			"Exit codes: 0 if the new settings are in force (or valid, with --dry-run), 2 if the router rejects them, 1 if it cannot be reached.",
		Example: "  kvpilot reload --dry-run\n  kvpilot reload",
		Args:    cobra.NoArgs,
	}
	query(cmd, env, out, func(ctx context.Context, r *remote, c *client.Client, _ []string) (*kvpilotv1.ReloadConfigResponse, error) {
		answer, err := c.Settings().ReloadConfig(ctx, &kvpilotv1.ReloadConfigRequest{DryRun: dry})
		return answer, r.refusal(err)
	}, func(a *kvpilotv1.ReloadConfigResponse) error { return printReload(out, dry, a) })
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only check, and report what would change")
	return cmd
}

// newConfigCommand lists the versions of a router's settings and goes back to one.
func newConfigCommand(env []string, out io.Writer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "List the versions of a running router's settings, and roll back to one",
	}
	cmd.AddCommand(newVersionsCommand(env, out), newRollbackCommand(env, out))
	return cmd
}

func newVersionsCommand(env []string, out io.Writer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "versions",
		Short: "List the versions of the settings since the router started, latest first",
		Args:  cobra.NoArgs,
	}
	query(cmd, env, out, func(ctx context.Context, _ *remote, c *client.Client, _ []string) (*kvpilotv1.ListConfigVersionsResponse, error) {
		return c.Settings().ListConfigVersions(ctx, &kvpilotv1.ListConfigVersionsRequest{})
	}, func(a *kvpilotv1.ListConfigVersionsResponse) error { return printVersions(out, a.GetVersions()) })
	return cmd
}

func newRollbackCommand(env []string, out io.Writer) *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use:   "rollback VERSION",
		Short: "Restore the settings of an earlier version, as a new version",
		Long: "Restore the settings of an earlier version, as a new version.\n\n" +
			"The settings file is not changed: its next change, a reload or a restart applies it again. Files that the settings\n" +
			"name, such as keys, are read in their present state.\n\n" +
			"Exit codes: 0 if the version is in force (or valid, with --dry-run), 2 if the router rejects it, 1 if it cannot be reached.",
		Args: exactly("a version, as `kvpilot config versions` lists it"),
	}
	query(cmd, env, out, func(ctx context.Context, r *remote, c *client.Client, args []string) (*kvpilotv1.RollbackConfigResponse, error) {
		number, err := strconv.ParseUint(args[0], 10, 64)
		if err != nil || number == 0 {
			return nil, fmt.Errorf("%q is not a version; kvpilot config versions lists them", args[0])
		}
		answer, err := c.Settings().RollbackConfig(ctx, &kvpilotv1.RollbackConfigRequest{Version: number, DryRun: dry})
		return answer, r.refusal(err)
	}, func(a *kvpilotv1.RollbackConfigResponse) error { return printReload(out, dry, a) })
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only check, and report what would change")
	return cmd
}

// refusal marks an error that is the router's word on the settings.
func (r *remote) refusal(err error) error {
	if code := status.Code(err); code == codes.InvalidArgument || code == codes.Internal {
		return &exitError{exitRefused, errors.New(r.address + ": " + status.Convert(err).Message())}
	}
	return err
}

// reloaded is the common part of both RPCs' answers.
type reloaded interface {
	GetVersion() *kvpilotv1.ConfigVersion
	GetChanges() []*kvpilotv1.ConfigChange
}

func printReload(out io.Writer, dry bool, answer reloaded) error {
	var text strings.Builder
	var now, later []*kvpilotv1.ConfigChange
	for _, c := range answer.GetChanges() {
		if c.GetNeedsRestart() {
			later = append(later, c)
		} else {
			now = append(now, c)
		}
	}
	version := answer.GetVersion().GetVersion()
	switch {
	case len(now)+len(later) == 0 && dry:
		fmt.Fprintln(&text, "The settings are valid. Nothing would change.")
	case len(now)+len(later) == 0:
		fmt.Fprintf(&text, "Nothing has changed; version %d stays in force.\n", version)
	case dry:
		fmt.Fprintln(&text, "The settings are valid.")
	default:
		fmt.Fprintf(&text, "Version %d is in force.\n", version)
	}
	list := func(head string, changes []*kvpilotv1.ConfigChange) {
		if len(changes) == 0 {
			return
		}
		fmt.Fprintln(&text, head)
		for _, c := range changes {
			fmt.Fprintf(&text, "  %s: %s -> %s\n", plain(c.GetPath()), cmp.Or(plain(c.GetOld()), "(none)"), cmp.Or(plain(c.GetNew()), "(none)"))
		}
	}
	if dry {
		list("Would be applied:", now)
	} else {
		list("Applied:", now)
	}
	list("Needs a restart:", later)
	_, err := io.WriteString(out, text.String())
	return err
}

func printVersions(out io.Writer, list []*kvpilotv1.ConfigVersion) error {
	g := &grid{columns: []column{
		{head: "VERSION", right: true}, {head: "TIME"}, {head: "BY"}, {head: "CALLER", spare: 1}, {head: "HASH", spare: 2}, {head: "CHANGES", spare: 3},
	}}
	for _, v := range list {
		number, by := strconv.FormatUint(v.GetVersion(), 10), word(v.GetOrigin(), "CONFIG_ORIGIN_")
		if v.GetCurrent() {
			number = "*" + number
		}
		if of := v.GetRollbackOf(); of > 0 {
			by += fmt.Sprintf(" to %d", of)
		}
		var paths []string
		for _, c := range v.GetChanges() {
			paths = append(paths, plain(c.GetPath()))
		}
		g.add(number, v.GetTime().AsTime().Local().Format(time.DateTime), by, cmp.Or(plain(v.GetWho()), "–"), v.GetHash(), cmp.Or(strings.Join(paths, ","), "–"))
	}
	return g.print(out)
}
