package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// runner is a part with background work: Run blocks until ctx ends and returns nil then.
type runner interface {
	Run(ctx context.Context) error
}

// task is a function as a runner.
type task func(ctx context.Context) error

// Run implements runner.
func (t task) Run(ctx context.Context) error { return t(ctx) }

// component is a runner with its name for errors.
type component struct {
	name string
	runner
}

// group runs components and reports the first one that ends before its context does.
type group struct {
	wg     sync.WaitGroup
	failed chan error
}

func newGroup(size int) *group { return &group{failed: make(chan error, size)} }

// start runs each component on a goroutine of its own until ctx ends.
func (c *group) start(ctx context.Context, parts ...component) {
	for _, p := range parts {
		c.wg.Go(func() {
			err := p.Run(ctx)
			switch {
			case ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)):
			case err == nil:
				c.failed <- fmt.Errorf("%s stopped unexpectedly", p.name)
			default:
				c.failed <- fmt.Errorf("%s: %w", p.name, err)
			}
		})
	}
}

// wait returns when every component has ended.
func (c *group) wait() { c.wg.Wait() }

// endpoint is a server on its listener.
type endpoint interface {
	name() string
	// serve blocks until the server is stopped.
	serve() error
	// stop lets requests finish until ctx ends and then closes their connections.
	stop(ctx context.Context) error
}

// lastWords is how long requests that the drain deadline ends may write their errors.
const lastWords = time.Second

// upgraded ends the connections that have become something else than HTTP, or cuts them off when ctx ends.
type upgraded interface {
	Leave(ctx context.Context) error
}

// httpEndpoint serves HTTP. Requests that are not done in time end with the error SHUTTING_DOWN, a stream with an error event.
type httpEndpoint struct {
	label    string
	listener net.Listener
	server   *http.Server
	upgraded upgraded // nil when there are none
	end      context.CancelCauseFunc
}

func newHTTPEndpoint(label string, l net.Listener, s *http.Server, u upgraded) *httpEndpoint {
	work, end := context.WithCancelCause(context.Background())
	s.BaseContext = func(net.Listener) context.Context { return work }
	return &httpEndpoint{label, l, s, u, end}
}

func (e *httpEndpoint) name() string { return e.label }

func (e *httpEndpoint) serve() error {
	if err := e.server.Serve(e.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (e *httpEndpoint) stop(ctx context.Context) error {
	defer e.end(nil)
	others := make(chan error, 1)
	go func() {
		var err error
		if e.upgraded != nil {
			err = e.upgraded.Leave(ctx)
		}
		others <- err
	}()
	err := e.server.Shutdown(ctx)
	if err != nil {
		err = fmt.Errorf("%s: streams were cut off: %w", e.label, err)
		e.end(apierror.New(apierror.ShuttingDown, "the router is stopping: another one answers the request when it is sent again", nil))
		last, cancel := context.WithTimeout(context.Background(), lastWords)
		if e.server.Shutdown(last) != nil {
			err = errors.Join(err, e.server.Close())
		}
		cancel()
	}
	if cut := <-others; cut != nil {
		err = errors.Join(err, fmt.Errorf("%s: WebSockets were cut off: %w", e.label, cut))
	}
	return err
}

// grpcEndpoint serves gRPC.
type grpcEndpoint struct {
	label    string
	listener net.Listener
	server   *grpc.Server
}

func (e *grpcEndpoint) name() string { return e.label }
func (e *grpcEndpoint) serve() error { return e.server.Serve(e.listener) }

func (e *grpcEndpoint) stop(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		e.server.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		e.server.Stop()
		<-done
		return fmt.Errorf("%s: streams were cut off: %w", e.label, ctx.Err())
	}
}

// awaitFleet blocks until the replicas have reported, at most for listen.start_wait. The callers' connections are queued by
// the operating system until then: no request is answered before the router knows what to choose from.
func (s *Server) awaitFleet(ctx context.Context) {
	limit := s.config.Listen.StartWait
	if limit == 0 || !hasSource(s.config) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := s.parts.ranks.Registry.AwaitReports(ctx); errors.Is(err, context.DeadlineExceeded) {
		state := "ready"
		if err := s.ready(); err != nil {
			state = err.Error()
		}
		s.unanswered.Do(func() {
			s.parts.scope.Log().Info("serving before every replica has answered a probe", "waited", limit, "state", state)
		})
	}
}

// stopAll stops the endpoints concurrently.
func stopAll(ctx context.Context, endpoints []endpoint) error {
	errs := make([]error, len(endpoints))
	var wg sync.WaitGroup
	for i, d := range endpoints {
		wg.Go(func() { errs[i] = d.stop(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// pause waits for d, or until hurry is closed.
func pause(d time.Duration, hurry <-chan error) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-hurry:
	}
}
