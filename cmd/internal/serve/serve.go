package serve

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/cmd/internal/build"
	"github.com/kvpilot/kvpilot/server"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/kit/memlimit"
)

// flags are the few settings that are worth a flag of their own.
type flags struct {
	file     string
	set      []string
	replicas []string
	events   string
	replay   string
	http     string
	grpc     string
	admin    string
	check    bool
	print    bool
}

// Command runs the router.
func Command(env []string, out, errOut io.Writer) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the router",
		Long: "Run the router.\n\nSettings come from the file that --config or KVPILOT_CONFIG names, then from environment variables (KVPILOT_LISTEN_HTTP for listen.http),\n" +
			"then from --set and the flags below; docs/config.md lists them all.",
		Example: "  kvpilot serve --replica http://10.0.0.7:8000 --replica http://10.0.0.8:8000\n  kvpilot serve --config kvpilot.yaml --set telemetry.log_level=debug",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			source := f.source(env)
			loaded, err := config.Read(source)
			if err != nil {
				return err
			}
			c := loaded.Config
			switch {
			case f.print:
				return config.Print(out, c)
			case f.check:
				fmt.Fprintln(out, "the settings are valid")
				return nil
			}
			hangups := make(chan os.Signal, 1) // one that waits says as much as many
			signal.Notify(hangups, syscall.SIGHUP)
			defer signal.Stop(hangups) // when all is drained: until then a hang-up must not end the process
			limit := memlimit.Find(c.Memory)
			limit.Hold(env)
			m := manager{errOut}
			s, err := server.New(cmd.Context(), c, server.Params{
				LogTo: errOut, Memory: limit, Version: build.Read().Version, Env: env, Source: &source, Text: loaded.Text, Hangup: hangups,
				OnServing: m.serving, OnHangup: m.reloading,
			})
			if err != nil {
				return err
			}
			var background sync.WaitGroup
			defer background.Wait()
			ctx, stop := context.WithCancel(cmd.Context())
			defer stop()
			background.Go(func() { tuneGC(ctx) })
			background.Go(func() { m.stopping(ctx) })
			draining, end := context.WithCancel(context.WithoutCancel(ctx))
			defer end()
			background.Go(func() { m.watchdog(draining) })
			return s.Run(ctx)
		},
	}
	list := cmd.Flags()
	list.StringVar(&f.file, "config", "", "YAML file with settings (KVPILOT_CONFIG)")
	list.StringArrayVar(&f.set, "set", nil, "override one setting: path.to.key=value")
	list.StringArrayVar(&f.replicas, "replica", nil, "base URL of a replica; may be repeated")
	list.StringVar(&f.events, "events", "", "where replicas publish KV events, for example tcp://{host}:5557 (registry.events.endpoint)")
	list.StringVar(&f.replay, "replay", "", "where replicas replay KV events, for example tcp://{host}:5657 (registry.events.replay)")
	list.StringVar(&f.http, "http", "", "address of the REST surface (listen.http)")
	list.StringVar(&f.grpc, "grpc", "", "address of the gRPC services (listen.grpc)")
	list.StringVar(&f.admin, "admin", "", "address of health, metrics and console (listen.admin)")
	list.BoolVar(&f.check, "check-config", false, "check the settings and exit")
	list.BoolVar(&f.print, "print-config", false, "print the settings, secrets masked, and exit")
	return cmd
}

// source is where the settings come from, at start and at every reload. The variable KVPILOT_CONFIG is an image's default of --config.
func (f flags) source(env []string) config.Source {
	set := slices.Clone(f.set)
	for _, flag := range []struct{ path, value string }{
		{"listen.http", f.http}, {"listen.grpc", f.grpc}, {"listen.admin", f.admin},
		{"registry.events.endpoint", f.events}, {"registry.events.replay", f.replay},
	} {
		if flag.value != "" {
			set = append(set, flag.path+"="+flag.value)
		}
	}
	file := f.file
	for _, v := range env {
		if name, ok := strings.CutPrefix(v, "KVPILOT_CONFIG="); ok && file == "" {
			file = name
		}
	}
	return config.Source{File: file, Env: env, Set: set, Replicas: f.replicas}
}
