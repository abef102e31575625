package enginesim

import (
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kvpilot/kvpilot/sim/enginesim/websocket"
)

// sockets are the connections of WebSockets, which net/http knows nothing of; they end with the life.
type sockets struct {
	mu    sync.Mutex
	ended bool                  // guarded by mu
	open  map[net.Conn]struct{} // guarded by mu
}

func (s *sockets) add(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	if s.open == nil {
		s.open = map[net.Conn]struct{}{}
	}
	s.open[c] = struct{}{}
	return true
}

func (s *sockets) drop(c net.Conn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}

func (s *sockets) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for c := range s.open {
		c.Close()
	}
}

// realtime is a WebSocket that says session.created as vLLM's does, and then sends every message back: there is no speech
// model to simulate.
func (l *life) realtime(c *call) {
	h := c.r.Header
	key := h.Get("Sec-Websocket-Key")
	if !strings.EqualFold(h.Get("Upgrade"), "websocket") || key == "" {
		c.reply(http.StatusNotFound, map[string]string{"detail": "Not Found"})
		return
	}
	conn, both, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		c.reply(http.StatusInternalServerError, map[string]string{"detail": err.Error()})
		return
	}
	if !l.sockets.add(conn) {
		conn.Close()
		return
	}
	defer l.sockets.drop(conn)
	c.book.update(func() { c.record.Status = http.StatusSwitchingProtocols })
	_ = conn.SetDeadline(time.Time{}) // fails on closed connections only, as the next read will
	hello, err := json.Marshal(map[string]any{"type": "session.created", "id": "sess-" + l.newID(), "created": time.Now().Unix()}, json.Deterministic(true))
	if err != nil {
		panic(err) // of texts and numbers
	}
	out := []byte("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nServer: uvicorn\r\nSec-WebSocket-Accept: " + websocket.AcceptKey(key) + "\r\n\r\n")
	if _, err := conn.Write(websocket.AppendText(out, hello)); err != nil {
		return
	}
	_ = websocket.Echo(conn, both.Reader) // its end needs no answer
}
