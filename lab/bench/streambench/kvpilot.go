package streambench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// startRouter starts the whole router in front of the upstream as an operator would, with some settings changed.
func (b *bench) startRouter(ctx context.Context, name string, set ...string) (*process, error) {
	args := []string{"--replica", "http://" + b.upstream.address}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	return b.startServing(ctx, name, args...)
}

// startServing starts a router with these arguments and waits until it lists the model.
func (b *bench) startServing(ctx context.Context, name string, args ...string) (*process, error) {
	free, err := measure.FreeAddresses(ctx, 3)
	if err != nil {
		return nil, err
	}
	cmd := command(ctx, slices.Concat(b.options.Serve, args, []string{"--http", free[0], "--grpc", free[1], "--admin", free[2],
		"--set", "admin.profiles=true", "--set", "telemetry.log_level=error"}))
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: cmd, address: free[0], debug: free[2], pids: []int{cmd.Process.Pid}}
	if err := measure.Await(ctx, 15*time.Second, func() error {
		models, err := get(ctx, p.address, "/v1/models")
		if err == nil && !strings.Contains(models, Model) {
			err = errors.New("it lists other models")
		}
		return err
	}); err != nil {
		p.stop()
		return nil, fmt.Errorf("does not list the upstream's model: %w", err)
	}
	return p, nil
}
