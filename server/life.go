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

// component is a part with work of its own: run blocks until ctx ends and returns nil then.
type component struct {
	name string
	run  func(ctx context.Context) error
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
			err := p.run(ctx)
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

// endpoint is a server on its listener: serve blocks until it is stopped. stop lets requests finish until ctx ends and then
// closes their connections.
type endpoint struct {
	name  string
	serve func() error
	stop  func(ctx context.Context) error
}

// lastWords is how long requests that the drain deadline ends may write their errors.
const lastWords = time.Second

// httpEndpoint serves HTTP on l. Requests that are not done in time end with the error SHUTTING_DOWN, a stream with an error event. upgraded ends the connections that have become something else; nil when there are none.
func httpEndpoint(name string, l net.Listener, s *http.Server, upgraded func(context.Context) error) endpoint {
	work, end := context.WithCancelCause(context.Background())
	s.BaseContext = func(net.Listener) context.Context { return work }
	return endpoint{
		name: name,
		serve: func() error {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		},
		stop: func(ctx context.Context) error {
			defer end(nil)
			others := make(chan error, 1)
			go func() {
				if upgraded == nil {
					upgraded = func(context.Context) error { return nil }
				}
				others <- upgraded(ctx)
			}()
			err := s.Shutdown(ctx)
			if err != nil {
				err = fmt.Errorf("%s: streams were cut off: %w", name, err)
				end(apierror.New(apierror.ShuttingDown, "the router is stopping", nil))
				last, cancel := context.WithTimeout(context.Background(), lastWords)
				if s.Shutdown(last) != nil {
					err = errors.Join(err, s.Close())
				}
				cancel()
			}
			if cut := <-others; cut != nil {
				err = errors.Join(err, fmt.Errorf("%s: WebSockets were cut off: %w", name, cut))
			}
			return err
		},
	}
}

// grpcEndpoint serves gRPC on l.
func grpcEndpoint(name string, l net.Listener, s *grpc.Server) endpoint {
	return endpoint{
		name:  name,
		serve: func() error { return s.Serve(l) },
		stop: func(ctx context.Context) error {
			done := make(chan struct{})
			go func() {
				s.GracefulStop()
				close(done)
			}()
			select {
			case <-done:
				return nil
			case <-ctx.Done():
				s.Stop()
				<-done
				return fmt.Errorf("%s: streams were cut off: %w", name, ctx.Err())
			}
		},
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
	if err := s.parts.registry.AwaitReports(ctx); errors.Is(err, context.DeadlineExceeded) {
		state := "ready"
		if err := s.ready(); err != nil {
			state = err.Error()
		}
		s.unanswered.Do(func() {
			s.parts.log.Info("serving before every replica has answered a probe", "waited", limit, "state", state)
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
