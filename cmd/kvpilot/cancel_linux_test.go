package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

const toLeave = `{"model":"sim","stream":true,"ignore_eos":true,"max_tokens":5000,"messages":[{"role":"user","content":"somebody who leaves"}]}`

// leaver is a way to end a request before its answer did. send returns when the request is over; it is given up
// when ctx ends, unless it has a deadline of its own.
type leaver struct {
	send     func(ctx context.Context, f *fleet) error
	deadline time.Duration
}

func leavers() map[string]leaver {
	rest := func(protocols *http.Protocols) func(context.Context, *fleet) error {
		return func(ctx context.Context, f *fleet) error {
			var conn net.Conn
			transport := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				var err error
				conn, err = new(net.Dialer).DialContext(ctx, network, address)
				return conn, err
			}}
			defer func() { // an HTTP/2 connection would outlive its stream
				if conn != nil {
					conn.Close()
				}
			}()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+f.http+"/v1/chat/completions", strings.NewReader(toLeave))
			if err != nil {
				return err
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := transport.RoundTrip(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			_, err = io.Copy(io.Discard, resp.Body)
			return err
		}
	}
	half := func(ctx context.Context, f *fleet) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", f.http)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(toLeave), toLeave); err != nil {
			return err
		}
		<-ctx.Done()
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
		answer, err := io.ReadAll(conn) // the whole of it, however it is framed
		if strings.Contains(string(answer), "the sending side of it") {
			return errors.New("it was cancelled")
		}
		return err
	}
	rpc := func(ctx context.Context, f *fleet) error {
		conn, err := grpc.NewClient("passthrough:///"+f.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		stream, err := kvpilotv1.NewInferenceServiceClient(conn).ChatCompletions(ctx, &httpbody.HttpBody{ContentType: "application/json", Data: []byte(toLeave)})
		for err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	http1, http2 := new(http.Protocols), new(http.Protocols)
	http1.SetHTTP1(true)
	http2.SetUnencryptedHTTP2(true)
	return map[string]leaver{
		"the connection closes":   {rest(http1), 0},
		"its sending side closes": {half, 0},
		"HTTP/2 ends":             {rest(http2), 0},
		"the RPC is cancelled":    {rpc, 0},
		"the RPC's deadline ends": {rpc, time.Second},
	}
}

// stage is a moment in a request's life. prepare makes requests stop there, reached counts those that have come there.
type stage struct {
	options fleetOptions
	prepare func(f *fleet)
	reached func(f *fleet) int
}

// stages are all that a request waits at between its body and its last byte.
func stages() map[string]stage {
	generation := []string{"/v1/chat/completions"}
	tokenizing := []string{"/tokenize", "/v1/chat/completions/render"}
	at := func(f *fleet, paths []string) (n int) {
		for _, r := range f.engines[0].Requests() {
			if slices.Contains(paths, r.Path) {
				n++
			}
		}
		return n
	}
	working := func(f *fleet) int { return at(f, generation) }
	untokenized := fleetOptions{args: []string{"--set", "tokenizer.enabled=false"}} // the faulty path leads to the tokenizer too
	gate := &gate{}
	return map[string]stage{
		"while it is tokenized": {
			fleetOptions{args: []string{"--set", "router.tokenize_timeout=1h"}},
			func(f *fleet) {
				f.engines[0].SetFaults(enginesim.Faults{Where: enginesim.Where{Paths: tokenizing}, ConnectionFaults: enginesim.ConnectionFaults{Hang: true}})
			},
			func(f *fleet) int { return at(f, tokenizing) },
		},
		"while it is held in the queue": {
			// a booking that its engine does not show keeps its weight when nobody watches
			fleetOptions{args: []string{"--set", "chooser.hold_above=1ms", "--set", "chooser.stall.after=0s"}},
			func(f *fleet) { // a long prompt is booked, and nobody works on it
				f.t.Helper()
				busy := `{"model":"sim","lease":"3600s","token_ids":{"ids":[` + strings.Repeat("7,", 130_000) + `7]}}`
				for range 3 { // the others wait: whatever is predicted, the line does not end
					req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, "http://"+f.http+"/kvpilot/v1/choose", strings.NewReader(busy))
					if err != nil {
						f.t.Fatal(err)
					}
					req.Header.Set("Content-Type", "application/json")
					go func() {
						if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
							resp.Body.Close()
						}
					}()
				}
				f.eventually("the line is there", func() bool {
					return f.metric("kvpilot_admission_requests") == 2 && f.metric("kvpilot_load_reservations") == 1
				})
			},
			func(f *fleet) int { return int(f.metric("kvpilot_admission_requests")) },
		},
		"while the replica is dialled": {
			fleetOptions{
				listen: gate.listen, engine: func(_ int, c *enginesim.Config) { c.KeepAlive = 0 },
				args: []string{"--set", "upstream.dial_timeout=1h", "--set", "registry.probe.interval=1h", "--set", "registry.probe.max_interval=1h", "--set", "tokenizer.enabled=false", "--set", "enginestats.interval=1h", "--set", "enginestats.stale=2h"},
			},
			func(f *fleet) { gate.shut(f.t) },
			func(f *fleet) int { return int(f.metric("kvpilot_upstream_dials_total")) },
		},
		"before the first byte": {
			untokenized,
			func(f *fleet) {
				f.engines[0].SetFaults(enginesim.Faults{Where: enginesim.Where{Paths: generation}, ConnectionFaults: enginesim.ConnectionFaults{Hang: true}})
			},
			working,
		},
		"in mid-stream": {
			untokenized,
			func(f *fleet) {
				f.engines[0].SetFaults(enginesim.Faults{Where: enginesim.Where{Paths: generation}, StreamFaults: enginesim.StreamFaults{StallAfter: 3}})
			},
			working,
		},
	}
}

// Whoever leaves, however and whenever, leaves nothing behind: no goroutine, no booking, no place in the queue, no
// request at a replica. The record says 499.
func TestWhoLeavesLeavesNothingBehind(t *testing.T) {
	for name, s := range stages() {
		t.Run(name, func(t *testing.T) {
			s.options.replicas = 1
			s.options.args = append(s.options.args, "--set", "telemetry.log_level=debug")
			f := startFleet(t, s.options)
			f.engines[0].ForgetRequests()
			s.prepare(f)
			booked, queued := f.metric("kvpilot_load_reservations"), f.metric("kvpilot_admission_requests")
			before := goroutines()
			sent, gone, late := 0, 0.0, 0.0
			times := 3
			if testing.Short() {
				times = 1
			}
			for how, l := range leavers() {
				for range times {
					sent++
					if l.deadline > 0 {
						late++
					} else {
						gone++
					}
					ctx, leave := context.WithCancel(t.Context())
					if l.deadline > 0 {
						ctx, leave = context.WithTimeout(t.Context(), l.deadline)
					}
					done := make(chan error, 1)
					there := s.reached(f)
					go func() { done <- l.send(ctx, f) }()
					if l.deadline == 0 {
						f.eventually(how+": the stage is reached", func() bool { return s.reached(f) > there })
						leave()
					}
					select {
					case err := <-done:
						if err == nil {
							t.Errorf("%s: the request ended well", how)
						}
					case <-time.After(20 * time.Second):
						t.Fatalf("%s: the client is not let go", how)
					}
					leave()
					f.eventually(how+": the request is over", func() bool {
						return f.metric("kvpilot_router_requests_in_flight") == 0 && f.metric("kvpilot_load_reservations") == booked && f.metric("kvpilot_admission_requests") == queued
					})
				}
			}
			f.eventually("the requests are counted", func() bool {
				n := 0.0
				for _, status := range []string{"499", "504", "429"} { // the queue refuses who cannot be served in time
					n += f.metric("kvpilot_router_requests_total", `status="`+status+`"`)
				}
				return n == gone+late
			})
			if n := f.metric("kvpilot_router_requests_total", `status="499"`); n < gone {
				t.Errorf("%v requests of %v are recorded as 499", n, gone)
			}
			if n := float64(strings.Count(f.log.String(), "status=499")); n < gone {
				t.Errorf("the log has %v requests with 499, want %v", n, gone)
			}
			f.eventually(fmt.Sprintf("no goroutine is left of %d requests (%d before)", sent, before), func() bool { return goroutines() <= before+2 })
		})
	}
}

// goroutines counts those that are not about idle connections of the test's own.
func goroutines() int {
	http.DefaultClient.CloseIdleConnections()
	return runtime.NumGoroutine()
}

// gate is a listener that can be made to take no connections any more, so that whoever dials it waits.
type gate struct {
	net.Listener
	mu      sync.Mutex
	closed  chan struct{}
	held    []net.Conn // guarded by mu
	stopped bool       // guarded by mu
}

func (g *gate) listen(l net.Listener) net.Listener {
	g.Listener, g.closed = l, make(chan struct{})
	return g
}

// Accept implements net.Listener.
func (g *gate) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	g.mu.Lock()
	stopped := g.stopped
	if stopped && err == nil {
		g.held = append(g.held, c)
	}
	g.mu.Unlock()
	if !stopped || err != nil {
		return c, err
	}
	<-g.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (g *gate) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.held {
		c.Close()
	}
	select {
	case <-g.closed:
	default:
		close(g.closed)
	}
	return g.Listener.Close()
}

// shut lets nobody in any more and fills the line at the door.
func (g *gate) shut(t *testing.T) {
	t.Helper()
	g.mu.Lock()
	g.stopped = true
	g.mu.Unlock()
	raw, err := g.Listener.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = syscall.Listen(int(fd), 0) }); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		c, err := net.DialTimeout("tcp", g.Addr().String(), 300*time.Millisecond)
		if err != nil {
			return
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Skip("this system's backlog cannot be filled")
}
