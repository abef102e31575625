package main

import (
	"context"
	"encoding/hex"
	"net"
	"sync"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// collector receives spans over OTLP and keeps their names by trace.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	server  *grpc.Server
	address string

	mu    sync.Mutex
	spans map[string][]span // guarded by mu, by trace id
}

type span struct {
	name, id, parent string
	took             time.Duration
}

func (f *fleet) startCollector(ctx context.Context) error {
	address := "127.0.0.1:0"
	if kept := f.kept(); kept.Collector != "" {
		address = kept.Collector
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	c := &collector{server: grpc.NewServer(), address: ln.Addr().String(), spans: map[string][]span{}}
	collectorv1.RegisterTraceServiceServer(c.server, c)
	go func() { _ = c.server.Serve(ln) }() // it ends with stop
	f.spans = c
	return nil
}

// url is the address as vLLM takes it.
func (c *collector) url() string { return "http://" + c.address }

func (c *collector) stop() { c.server.Stop() }

// Export implements the collector's service.
func (c *collector) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range req.GetResourceSpans() {
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				trace := hex.EncodeToString(s.GetTraceId())
				c.spans[trace] = append(c.spans[trace], span{
					s.GetName(), hex.EncodeToString(s.GetSpanId()), hex.EncodeToString(s.GetParentSpanId()),
					time.Duration(s.GetEndTimeUnixNano() - s.GetStartTimeUnixNano()), //nolint:gosec // a span is shorter than 292 years
				})
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// wait gives the trace's spans once one of them has the name, or the present ones at the end.
func (c *collector) wait(ctx context.Context, trace, name string) (list []span, found bool) {
	for {
		c.mu.Lock()
		list = append([]span(nil), c.spans[trace]...)
		c.mu.Unlock()
		for _, s := range list {
			if s.name == name {
				return list, true
			}
		}
		select {
		case <-ctx.Done():
			return list, false
		case <-time.After(100 * time.Millisecond):
		}
	}
}
