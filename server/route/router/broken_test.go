package router_test

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// half is a step that sends the head and half of an answer of a size.
func half(size int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text(200, `{"text":"`+strings.Repeat("x", size/2), "Content-Length", "900")(w, r)
		w.(http.Flusher).Flush()
		cut(w, r)
	}
}

// TestAnAnswerThatBreaksOffUnseenIsRetriedOrRefused: of an answer that is not streamed the client has nothing
// until all is there.
func TestAnAnswerThatBreaksOffUnseenIsRetriedOrRefused(t *testing.T) {
	f := start(t, 2, nil)
	f.script(half(800))
	to := &client{}
	err := f.router.Serve(t.Context(), chat(""), to)
	if e := apierror.From(err); e == nil || e.Reason != apierror.UpstreamStreamBroken || e.HTTPStatus() != 502 || to.status != 0 {
		t.Errorf("Serve() = %v, the client was begun with %d; want 502 and nothing begun", err, to.status)
	}
	if n := f.requests(); n != 2 {
		t.Errorf("%d requests, want one to each replica", n)
	}
	f.settled()
}

func TestAnAnswerInPiecesArrivesWhole(t *testing.T) {
	f := start(t, 1, nil)
	for name, size := range map[string]int{"small": 3 << 10, "large": 3 << 20} {
		want := `{"text":"` + strings.Repeat("x", size) + `"}`
		for _, length := range []bool{true, false} {
			f.script(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if length {
					w.Header().Set("Content-Length", strconv.Itoa(len(want)))
				}
				for rest := want; rest != ""; {
					n := min(len(rest), 7<<10)
					io.WriteString(w, rest[:n])
					w.(http.Flusher).Flush()
					rest = rest[n:]
				}
			})
			to := &client{}
			if err := f.router.Serve(t.Context(), chat(""), to); err != nil || to.body.String() != want {
				t.Errorf("%s, length told %v: %v, %d bytes, want %d", name, length, err, to.body.Len(), len(want))
			}
		}
	}
	f.settled()
}

// What is not an object is passed on as it comes: it may be a stream of another kind.
func TestOtherAnswersPassAsTheyCome(t *testing.T) {
	f := start(t, 1, nil)
	more := make(chan struct{})
	f.script(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		io.WriteString(w, "{}\n")
		w.(http.Flusher).Flush()
		<-more
		io.WriteString(w, "{}\n")
	})
	var once sync.Once
	to := &client{onWrite: func([]byte) error { once.Do(func() { close(more) }); return nil }}
	if err := f.router.Serve(t.Context(), chat(""), to); err != nil || to.body.String() != "{}\n{}\n" {
		t.Errorf("Serve() = %v, %q", err, &to.body)
	}
}

func TestATimeoutBeforeTheFirstByteIsRetried(t *testing.T) {
	f := start(t, 2, func(p *router.Params, _ *chooser.Config, _ *registry.Config) {
		uc := upstream.DefaultConfig()
		uc.ResponseHeaderTimeout = 100 * time.Millisecond
		p.Upstream = upstream.New(uc, upstream.Params{})
	})
	firstFails(f, silent)
	to := &client{}
	if err := f.router.Serve(t.Context(), chat(""), to); err != nil || to.status != 200 {
		t.Errorf("Serve() = %v, status %d; want another replica's answer", err, to.status)
	}
	f.settled()
	if ends := f.ends(); len(ends) != 2 || ends[0] != decision.EndMoved || ends[1] != decision.EndCompleted {
		t.Errorf("the decisions ended %v, want moved and completed", ends)
	}
}
