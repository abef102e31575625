package apiserver

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// wire passes connections on to the API server, and can be cut.
type wire struct {
	listener net.Listener
	target   string
	all      sync.WaitGroup

	mu    sync.Mutex
	cut   bool                  // guarded by mu
	conns map[net.Conn]struct{} // guarded by mu
}

// newWire returns a wire to the cluster; url is its own.
func newWire(t *testing.T, c *cluster) (w *wire, url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w = &wire{listener: l, target: strings.TrimPrefix(c.url, "https://"), conns: map[net.Conn]struct{}{}}
	w.all.Go(w.serve)
	t.Cleanup(func() {
		l.Close()
		w.set(true)
		w.all.Wait()
	})
	return w, "https://" + l.Addr().String()
}

func (w *wire) serve() {
	for {
		from, err := w.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", w.target)
		if err != nil || !w.keep(from, to) {
			from.Close()
			if to != nil {
				to.Close()
			}
			continue
		}
		for _, way := range [...][2]net.Conn{{from, to}, {to, from}} {
			w.all.Go(func() {
				_, _ = io.Copy(way[0], way[1]) // until one of them is closed
				from.Close()
				to.Close()
			})
		}
	}
}

// keep remembers connections, unless the wire is cut.
func (w *wire) keep(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		return false
	}
	for _, c := range conns {
		w.conns[c] = struct{}{}
	}
	return true
}

// set cuts the wire, or mends it.
func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	if cut {
		for c := range w.conns {
			c.Close()
		}
		clear(w.conns)
	}
}
