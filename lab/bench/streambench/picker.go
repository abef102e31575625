package streambench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvpilot/kvpilot/deploy"
	"github.com/kvpilot/kvpilot/internal/proc"
)

// startEnvoyPicker starts kvpilot as an endpoint picker, and Envoy with two worker threads before it.
func (l *launcher) startEnvoyPicker(ctx context.Context) (*process, error) {
	program, err := l.program("envoy")
	if err != nil {
		return nil, err
	}
	free, err := proc.FreeAddresses(ctx, 3)
	if err != nil {
		return nil, err
	}
	text, err := envoySettings(map[string]string{
		"{address: 127.0.0.1, port_value: 9901}": free[0], "{address: 0.0.0.0, port_value: 8080}": free[1],
		"{address: 127.0.0.1, port_value: 9002}": free[2], "{address: 127.0.0.1, port_value: 8000}": l.upstream.address,
	})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(l.dir, "envoy-picker.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	picker, err := l.startRouter(ctx, EnvoyPicker, "epp.listen="+free[2])
	if err != nil {
		return nil, err
	}
	p, err := l.started(ctx, EnvoyPicker, free[1], []string{program, "-c", file, "--concurrency", "2", "--log-level", "off", "--disable-hot-restart"})
	if err != nil {
		picker.stop()
		return nil, err
	}
	p.picker, p.pids = picker, append(p.pids, picker.pids...)
	return p, nil
}

// envoySettings is deploy/envoy/envoy.yaml with other addresses.
func envoySettings(addresses map[string]string) (string, error) {
	text := deploy.Envoy
	for from, to := range addresses {
		host, port, _ := strings.Cut(to, ":")
		if !strings.Contains(text, from) {
			return "", fmt.Errorf("deploy/envoy/envoy.yaml has no %s", from)
		}
		text = strings.ReplaceAll(text, from, fmt.Sprintf("{address: %s, port_value: %s}", host, port))
	}
	return text, nil
}
