// Command kvpilot-bench measures what docs/performance.md promises of kvpilot, on this machine.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/kvpilot/kvpilot/cmd/internal/serve"
	"github.com/kvpilot/kvpilot/lab/bench"
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
	root := bench.Command()
	root.SetOut(out)
	root.SetErr(errOut)
	router := serve.Command(env, out, errOut) // what is measured, as a process of its own
	router.Hidden = true
	root.AddCommand(router)
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}
