package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/cmd/internal/build"
	"github.com/kvpilot/kvpilot/server"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/kit/memlimit"
)

// checkFiles reports the files of certificates and keys that a start could not use. Settings may be checked where these files are not, so
// that is no error of the settings.
func checkFiles(c config.Config) error {
	_, keys := callers.New(c.API.Callers(), callers.Params{})
	if keys != nil {
		keys = fmt.Errorf("api.%w", keys)
	}
	var fleet error
	if c.Fleet.Listen != "" {
		if _, err := c.Fleet.Secret(); err != nil {
			fleet = fmt.Errorf("fleet: %w", err)
		}
	}
	return errors.Join(server.CheckFiles(c), keys, fleet)
}

// report writes the known facts about valid settings.
func report(out io.Writer, c config.Config) {
	if err := checkFiles(c); err != nil {
		fmt.Fprintf(out, "the settings are valid, but a start here would fail:\n%v\n", err)
	} else {
		fmt.Fprintln(out, "the settings are valid")
	}
	for _, doubt := range c.Registry.Doubts() {
		fmt.Fprintln(out, "probably wrong: registry."+doubt)
	}
}

// Command runs the router.
func Command(env []string, out, errOut io.Writer) *cobra.Command {
	var f Settings
	var check, printing bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the router",
		Long: "Run the router.\n\nSettings come from the file that --config or KVPILOT_CONFIG names, then from environment variables (KVPILOT_LISTEN_HTTP for listen.http),\n" +
			"then from --set and the flags below; docs/config.md lists them all.",
		Example: "  kvpilot serve --replica http://10.0.0.7:8000 --replica http://10.0.0.8:8000\n  kvpilot serve --config kvpilot.yaml --set telemetry.log_level=debug",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			source := f.Source(env)
			loaded, err := config.Read(source)
			if err != nil {
				return err
			}
			c := loaded.Config
			switch {
			case printing:
				return config.Print(out, c)
			case check:
				report(out, c)
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
				Manager: m,
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
	f.Flags(list)
	list.BoolVar(&check, "check-config", false, "check the settings and exit")
	list.BoolVar(&printing, "print-config", false, "print the settings, secrets masked, and exit")
	return cmd
}
