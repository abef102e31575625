package guard

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/emptypb"
)

// pipes is a listener in memory, whose connections a bubble can wait for.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

func (p *pipes) dial() net.Conn {
	here, there := net.Pipe()
	p.conns <- there
	return here
}

// serve runs a guarded server with one method, which takes two minutes, and returns the listener.
func serve(t *testing.T) (*pipes, func()) {
	t.Helper()
	d := New(Limits{Message: 1 << 20, Streams: 10, HeaderBytes: 1 << 16, Handshake: time.Minute, Idle: time.Hour}, Params{
		Ledger: newLedger(1 << 20), Senders: strangers,
	})
	server := grpc.NewServer(d.Options()...)
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "a", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "b",
		Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			if err := decode(&emptypb.Empty{}); err != nil {
				return nil, err
			}
			select {
			case <-time.After(2 * time.Minute):
				return &emptypb.Empty{}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	}}}, nil)
	l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	return l, func() {
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve() = %v", err)
		}
	}
}

// A caller may ping every 10 s, during a long call and without one: it keeps its connection.
func TestCallersMayPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, stop := serve(t)
		defer stop()
		dials := 0
		conn, err := grpc.NewClient("passthrough:a", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { dials++; return l.dial(), nil }),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		call := func() {
			t.Helper()
			if err := conn.Invoke(t.Context(), "/a/b", &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
				t.Fatal(err)
			}
		}
		call()
		time.Sleep(5 * time.Minute)
		if state := conn.GetState(); state != connectivity.Ready {
			t.Errorf("the idle connection is %v", state)
		}
		call()
		if dials != 1 {
			t.Errorf("%d connections were made, want 1", dials)
		}
	})
}

// A caller that pings every second loses its connection.
func TestPingsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, stop := serve(t)
		defer stop()
		c := l.dial()
		defer c.Close()
		went := make(chan http2.ErrCode, 1)
		fr := http2.NewFramer(c, c)
		go func() {
			for {
				f, err := fr.ReadFrame()
				if goAway, ok := f.(*http2.GoAwayFrame); ok {
					went <- goAway.ErrCode
				}
				if err != nil {
					return
				}
			}
		}()
		if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		if err := fr.WriteSettings(); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			time.Sleep(time.Second)
			if fr.WritePing(false, [8]byte{1}) != nil {
				break
			}
		}
		select {
		case code := <-went:
			if code != http2.ErrCodeEnhanceYourCalm {
				t.Errorf("the connection ended with %v", code)
			}
		default:
			t.Error("the connection lives")
		}
	})
}
