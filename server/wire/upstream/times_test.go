package upstream

import (
	"context"
	"net"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

func TestTimesTellHowTheReplicaWasReached(t *testing.T) {
	eachRead(t, nil, func(t *testing.T, c *Client) {
		target := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("answer")) })
		exchange := func() *Times {
			times := &Times{}
			resp, err := c.Do(ctxFor(t), target, &Request{Method: http.MethodPost, Path: "/", Times: times})
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Close()
			if _, err := resp.ReadAll(100); err != nil {
				t.Fatal(err)
			}
			return times
		}
		first := exchange()
		if first.DialBegan.IsZero() || first.Dialed.Before(first.DialBegan) || first.Began.Before(first.Dialed) || first.Head.Before(first.Began) {
			t.Errorf("a new connection: %+v, want one moment after the other", first)
		}
		again := exchange()
		if !again.DialBegan.IsZero() || !again.Dialed.IsZero() || again.Began.IsZero() || again.Head.Before(again.Began) {
			t.Errorf("a kept connection: %+v, want no dial", again)
		}
	})
}

// A TLS handshake that takes too long ends with the error of its own context, which must not pass for the caller's.
func TestADialTimeoutIsNotTheCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		cfg := DefaultConfig()
		c := New(cfg, Params{Dial: own})
		defer c.transport.shut()
		target := Target{Replica: &replica.Replica{ID: "r", URL: "http://r:1"}}
		ask := func(ctx context.Context) retry.Verdict {
			_, err := c.Do(ctx, target, &Request{Method: http.MethodPost, Path: "/"})
			return Classify(nil, err)
		}
		if got := ask(t.Context()); got != retry.Unreachable {
			t.Errorf("after dial_timeout: %v, want another try elsewhere", got)
		}
		short, cancel := context.WithTimeout(t.Context(), cfg.DialTimeout/2)
		defer cancel()
		if got := ask(short); got != retry.Canceled {
			t.Errorf("after the caller's deadline: %v", got)
		}
	})
}

func TestTimesOfADialThatFailsHaveNoEnd(t *testing.T) {
	cfg := DefaultConfig()
	c := New(cfg, Params{})
	t.Cleanup(func() { c.transport.shut() })
	target := serveConn(t, nil)
	target.Replica.URL = "http://127.0.0.1:1"
	times := &Times{}
	if _, err := c.Do(ctxFor(t), target, &Request{Method: http.MethodPost, Path: "/", Times: times}); err == nil {
		t.Fatal("somebody answers on port 1")
	}
	if times.DialBegan.IsZero() || !times.Dialed.IsZero() || !times.Began.IsZero() {
		t.Errorf("times %+v", times)
	}
}
