package streambench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// opaque takes messages without decoding them: the collector's own work must not count.
type opaque struct{}

func (opaque) Marshal(any) (mem.BufferSlice, error) { return nil, nil } // an empty message
func (opaque) Unmarshal(mem.BufferSlice, any) error { return nil }
func (opaque) Name() string                         { return "proto" }

// forgetful answers every call of every service with an empty message.
func forgetful() *grpc.Server {
	return grpc.NewServer(grpc.ForceServerCodecV2(opaque{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		if err := s.RecvMsg(nil); err != nil {
			return err
		}
		return s.SendMsg(nil)
	}))
}

// ServeUpstreams is ServeUpstream on n ports at once; it writes their addresses in one line.
func ServeUpstreams(ctx context.Context, n int, out io.Writer) error {
	s := &http.Server{Handler: newFake().routes(), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, n)
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return errors.Join(err, s.Close())
		}
		if i > 0 {
			fmt.Fprint(out, " ")
		}
		fmt.Fprint(out, l.Addr())
		go func() { failed <- s.Serve(l) }()
	}
	fmt.Fprintln(out)
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	for range n {
		if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
			return err
		}
	}
	return nil
}

// pacer counts requests that are sent at a steady pace.
type pacer struct {
	done   atomic.Int64
	failed atomic.Pointer[error]
}

func (p *pacer) load() int64 { return p.done.Load() }

func (p *pacer) err() error {
	if e := p.failed.Load(); e != nil {
		return *e
	}
	return nil
}

// pace has each worker send one small request per interval, until ctx ends.
func pace(ctx context.Context, address string, workers int, every time.Duration) *pacer {
	p := &pacer{}
	for range workers {
		go func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			w := worker{address: address, payload: request(address, false, 200)}
			defer w.close()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if err := w.send(ctx); err != nil {
					if ctx.Err() == nil {
						p.failed.Store(&err)
					}
					return
				}
				p.done.Add(1)
			}
		}()
	}
	return p
}
