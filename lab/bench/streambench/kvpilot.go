package streambench

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// startRouter starts the whole router in front of the upstream as an operator would, with some settings changed.
func (l *launcher) startRouter(ctx context.Context, name string, set ...string) (*process, error) {
	args := []string{"--replica", "http://" + l.upstream.address}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	return l.startServing(ctx, name, args...)
}

// startServing starts a router with these arguments and waits until it lists the model.
func (l *launcher) startServing(ctx context.Context, name string, args ...string) (*process, error) {
	free, err := proc.FreeAddresses(ctx, 3)
	if err != nil {
		return nil, err
	}
	cmd := proc.Bound(ctx, slices.Concat(l.serve, args, []string{"--http", free[0], "--grpc", free[1], "--admin", free[2],
		"--set", "admin.profiles=true", "--set", "telemetry.log_level=error"})...)
	cmd.Stderr = os.Stderr
	p, err := serving(ctx, name, free[0], cmd, func() error {
		models, err := measure.Get(ctx, free[0], "/v1/models")
		if err == nil && !strings.Contains(models, Model) {
			err = errors.New("it lists other models")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	p.debug = free[2]
	return p, nil
}
