package streambench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// startKvpilot starts the whole router as an operator would, with its defaults.
func (b *bench) startKvpilot(ctx context.Context) (*process, error) {
	return b.startRouter(ctx, Kvpilot)
}

// startRouter starts a router in front of the upstream, with some settings changed.
func (b *bench) startRouter(ctx context.Context, name string, set ...string) (*process, error) {
	args := []string{"--replica", "http://" + b.upstream.address}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	return b.startServing(ctx, name, args...)
}

// startServing starts a router with these arguments and waits until it lists the model.
func (b *bench) startServing(ctx context.Context, name string, args ...string) (*process, error) {
	var addresses [3]string
	for i := range addresses {
		var err error
		if addresses[i], err = freeAddress(); err != nil {
			return nil, err
		}
	}
	args = slices.Concat(b.options.Serve, args, []string{"--http", addresses[0], "--grpc", addresses[1], "--admin", addresses[2],
		"--set", "admin.profiles=true", "--set", "telemetry.log_level=error"})
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: cmd, address: addresses[0], debug: addresses[2], pids: []int{cmd.Process.Pid}}
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		models, err := get(ctx, p.address, "/v1/models")
		if err == nil && strings.Contains(models, Model) {
			return p, nil
		}
		if time.Now().After(deadline) {
			p.stop()
			return nil, fmt.Errorf("does not list the upstream's model: %w", err)
		}
	}
}
