// Package stack starts the whole router in front of simulated replicas, for tests that look
// at it from outside. Everything listens on free ports of the loopback and ends with the test.
package stack

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// Stack is a running router with its replicas.
type Stack struct {
	// HTTP, GRPC and Admin are the router's addresses (host:port).
	HTTP, GRPC, Admin string
	// Gossip is where other routers join this one; empty unless Configure sets fleet.listen.
	Gossip string
	// EPP is the endpoint picker's address; empty unless Configure sets epp.listen.
	EPP string
	// Replicas are the base URLs of the simulated replicas.
	Replicas []string
	// Stop stops the router, and returns when it has ended.
	Stop func()
}

// Options say what to start; the zero value starts two fast replicas.
type Options struct {
	Replicas int
	// Existing are base URLs of replicas that run already; then none are started.
	Existing  []string
	Engine    func(*enginesim.Config)
	Configure func(*config.Config)
	// TLS says that Configure gives the router a certificate; the wait for it does not check that.
	TLS bool
}

// Start starts everything and waits until the router lists the replicas' models.
func Start(t testing.TB, o Options) *Stack {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	s := &Stack{}
	c := config.Default()
	c.Telemetry.LogLevel = "error"
	c.Listen.DrainTimeout = time.Second
	s.Replicas = o.Existing
	if len(o.Existing) == 0 {
		for range max(o.Replicas, 1+boolInt(o.Replicas == 0)) {
			s.Replicas = append(s.Replicas, startReplica(ctx, t, &running, o.Engine))
		}
	}
	for _, url := range s.Replicas {
		c.Registry.Replicas = append(c.Registry.Replicas, registry.Spec{URL: url})
	}
	if o.Configure != nil {
		o.Configure(&c)
	}
	s.startRouter(ctx, t, &running, c)
	s.waitReady(t, o.TLS)
	return s
}

// Aside lets a test that waits more than it computes run next to others. With the race detector it runs alone: others would then
// compute too much for a test that has to act while streams are under way, or for routers of a fleet that exchange reports.
func Aside(t *testing.T) {
	t.Helper()
	if !Race {
		t.Parallel()
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func startReplica(ctx context.Context, t testing.TB, running *sync.WaitGroup, change func(*enginesim.Config)) string {
	t.Helper()
	cfg := enginesim.DefaultConfig()
	cfg.Core.Timing.Speed = 50
	if change != nil {
		change(&cfg)
	}
	l := listen(t)
	engine, err := enginesim.New(cfg, enginesim.Params{HTTP: l, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	running.Go(func() {
		if err := engine.Run(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("simulated replica: %v", err)
		}
	})
	return "http://" + l.Addr().String()
}

func (s *Stack) startRouter(ctx context.Context, t testing.TB, running *sync.WaitGroup, c config.Config) {
	t.Helper()
	listeners := server.Listeners{HTTP: listen(t), GRPC: listen(t), Admin: listen(t)}
	s.HTTP, s.GRPC, s.Admin = listeners.HTTP.Addr().String(), listeners.GRPC.Addr().String(), listeners.Admin.Addr().String()
	if c.EPP.Listen != "" {
		listeners.EPP = listen(t)
		s.EPP = listeners.EPP.Addr().String()
	}
	serving := make(server.Serving, 1)
	router, err := server.New(ctx, c, server.Params{
		LogTo: io.Discard, Version: "test", Listeners: listeners, Manager: serving,
	})
	if err != nil {
		t.Fatal(err)
	}
	within, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	s.Stop = func() { cancel(); <-ended }
	running.Go(func() {
		defer close(ended)
		defer cancel()
		if err := router.Run(within); err != nil && within.Err() == nil {
			t.Errorf("router: %v", err)
		}
	})
	select {
	case at := <-serving:
		s.Gossip = at.Gossip
	case <-ended:
	}
}

// waitReady waits until the router takes requests, which it says without asking for a key.
func (s *Stack) waitReady(t testing.TB, secure bool) {
	t.Helper()
	client, scheme := http.DefaultClient, "http://"
	if secure {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		defer transport.CloseIdleConnections()
		client, scheme = &http.Client{Transport: transport}, "https://"
	}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		resp, err := client.Get(scheme + s.HTTP + "/health")
		if err != nil {
			continue
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return
		}
	}
	t.Fatal("the router does not become ready")
}
