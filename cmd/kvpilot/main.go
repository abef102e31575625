// Command kvpilot is the router and its tools in one binary.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		// A router outlives the terminal that it was started from: a hang-up before it listens for them says nothing, and
		// later has it read its settings again.
		signal.Ignore(syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kvpilot:", err)
		code := 1
		var own *exitError
		if errors.As(err, &own) {
			code = own.code
		}
		os.Exit(code)
	}
}

// run is the whole program with its surroundings passed in, so that tests can start it.
func run(ctx context.Context, args, env []string, out, errOut io.Writer) error {
	root := newRootCommand(env, out, errOut)
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}
