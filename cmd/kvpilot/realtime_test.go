package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// socket is a client's end of a WebSocket.
type socket struct {
	net.Conn
	r      *bufio.Reader
	status int
	header http.Header
	body   []byte // of a refusal
}

const handshake = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

// webSocket asks for a WebSocket; more are header lines, early what is sent with the handshake.
func (f *fleet) webSocket(path, more string, early []byte) *socket {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.http)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	head := "GET " + path + " HTTP/1.1\r\nHost: " + f.http + "\r\n" + handshake + more + "\r\n"
	if _, err := conn.Write(append([]byte(head), early...)); err != nil {
		f.t.Fatal(err)
	}
	s := &socket{Conn: conn, r: bufio.NewReader(conn)}
	resp, err := http.ReadResponse(s.r, &http.Request{Method: http.MethodGet})
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	s.status, s.header = resp.StatusCode, resp.Header
	if s.status != http.StatusSwitchingProtocols {
		if s.body, err = io.ReadAll(resp.Body); err != nil {
			f.t.Fatal(err)
		}
	}
	return s
}

// opened is a WebSocket that has begun.
func (f *fleet) opened(path, more string) *socket {
	f.t.Helper()
	s := f.webSocket(path, more, nil)
	if s.status != http.StatusSwitchingProtocols {
		f.t.Fatalf("status %d: %s", s.status, s.body)
	}
	if op, text := s.read(f.t); op != 0x81 || !bytes.Contains(text, []byte("session.created")) {
		f.t.Fatalf("the first message is %x %s", op, text)
	}
	return s
}

// frame is a client's frame.
func frame(first byte, payload []byte) []byte {
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n <= 0xffff:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	mask := [4]byte{0x5a, 0x00, 0xff, 0x13}
	b = append(b, mask[:]...)
	for i, c := range payload {
		b = append(b, c^mask[i%4])
	}
	return b
}

// next reads a server's frame.
func (s *socket) next() (first byte, payload []byte, err error) {
	var head [10]byte
	if _, err := io.ReadFull(s.r, head[:2]); err != nil {
		return 0, nil, err
	}
	size := uint64(head[1])
	switch head[1] {
	case 126:
		_, err = io.ReadFull(s.r, head[2:4])
		size = uint64(binary.BigEndian.Uint16(head[2:]))
	case 127:
		_, err = io.ReadFull(s.r, head[2:10])
		size = binary.BigEndian.Uint64(head[2:])
	}
	if err != nil {
		return 0, nil, err
	}
	payload = make([]byte, size)
	_, err = io.ReadFull(s.r, payload)
	return head[0], payload, err
}

func (s *socket) read(t *testing.T) (first byte, payload []byte) {
	t.Helper()
	first, payload, err := s.next()
	if err != nil {
		t.Fatal(err)
	}
	return first, payload
}

// ended waits for the connection's end and says how it came.
func (s *socket) ended() error {
	_, err := io.Copy(io.Discard, s.r)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil // reset or closed
}

func (s *socket) said(t *testing.T, text string) {
	t.Helper()
	if _, err := s.Write(frame(0x81, []byte(text))); err != nil {
		t.Fatal(err)
	}
	if _, got := s.read(t); string(got) != text {
		t.Fatalf("%q came back as %q", text, got)
	}
}

func TestRealtime(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2})
	t.Run("bytes", func(t *testing.T) {
		// What is sent with the handshake is the engine's too.
		s := f.webSocket("/v1/realtime?model=sim", "X-Request-Id: talk\r\nSec-WebSocket-Protocol: openai-insecure-api-key.x\r\n", frame(0x81, []byte("early")))
		if s.status != http.StatusSwitchingProtocols || s.header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" ||
			s.header.Get("X-Request-Id") != "talk" || s.header.Get("X-Kvpilot-Replica") == "" || s.header.Get("Upgrade") != "websocket" || s.header.Get("Server") != "" {
			t.Fatalf("%d %v %s", s.status, s.header, s.body)
		}
		s.read(t) // session.created
		if _, got := s.read(t); string(got) != "early" {
			t.Fatalf("got %q", got)
		}
		random := rand.NewChaCha8([32]byte{1})
		for _, first := range []byte{0x82, 0x02, 0x00, 0x80, 0x81, 0xc2} { // whole, in pieces, with a bit of an extension
			for _, size := range []int{0, 1, 125, 126, 127, 4096, 65535, 65536, 1 << 20} {
				sent := make([]byte, size)
				random.Read(sent)
				go s.Write(frame(first, sent))
				op, got := s.read(t)
				if first == 0xc2 {
					first &= 0xbf // the simulator knows no extensions
				}
				if op != first || !bytes.Equal(got, sent) {
					t.Fatalf("frame %x of %d bytes came back as %x of %d", first, size, op, len(got))
				}
			}
		}
		if n := f.metric("kvpilot_load_reservations"); n != 1 {
			t.Errorf("%v reservations while the WebSocket is open", n)
		}
		if _, err := s.Write(frame(0x88, []byte{3, 232})); err != nil {
			t.Fatal(err)
		}
		if op, got := s.read(t); op != 0x88 || !bytes.Equal(got, []byte{3, 232}) {
			t.Errorf("closing was answered by %x %v", op, got)
		}
		if err := s.ended(); err != nil {
			t.Error(err)
		}
		f.settled()
		f.eventually("the request is counted", func() bool {
			return f.metric("kvpilot_router_requests_total", `route="realtime"`, `status="101"`, `reason=""`) == 1
		})
	})
	t.Run("each to the replica with the least to do", func(t *testing.T) {
		at := map[string]int{}
		for range 4 {
			at[f.opened("/v1/realtime", "").header.Get("X-Kvpilot-Replica")]++
		}
		if len(at) != 2 || at["r0"] != 2 {
			t.Errorf("four WebSockets are at %v", at)
		}
	})
	t.Run("a client that leaves", func(t *testing.T) {
		s := f.opened("/v1/realtime", "")
		s.Close()
		f.eventually("the reservation is gone", func() bool {
			return f.metric("kvpilot_router_requests_total", `route="realtime"`, `reason="CANCELLED"`) >= 1
		})
	})
	t.Run("a pinned replica", func(t *testing.T) {
		for _, id := range []string{"r0", "r1", "r1"} {
			if s := f.opened("/v1/realtime", "X-Kvpilot-Pin: "+id+"\r\n"); s.header.Get("X-Kvpilot-Replica") != id {
				t.Errorf("pinned to %s, at %v", id, s.header)
			}
		}
	})
	t.Run("a replica that dies", func(t *testing.T) {
		s := f.opened("/v1/realtime", "X-Kvpilot-Pin: r1\r\n")
		s.said(t, "alive")
		f.engines[1].Restart(100 * time.Millisecond)
		if err := s.ended(); err != nil {
			t.Error(err)
		}
		f.eventually("the break is counted", func() bool {
			return f.metric("kvpilot_router_requests_total", `route="realtime"`, `reason="UPSTREAM_STREAM_BROKEN"`) >= 1
		})
	})
}

func TestRealtimeIsRefusedInWords(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2})
	get := func(t *testing.T, client *http.Client, header ...string) answer {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, "http://"+f.http+"/v1/realtime", nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return answer{status: resp.StatusCode, header: resp.Header, body: text, err: err}
	}
	t.Run("no upgrade", func(t *testing.T) {
		a := get(t, http.DefaultClient)
		message, _, _, code := a.openAIError(t)
		if a.status != http.StatusUpgradeRequired || a.header.Get("Upgrade") != "websocket" || code != "not_supported" || !strings.Contains(message, "WebSocket") {
			t.Errorf("%d %v %s", a.status, a.header, a.body)
		}
	})
	t.Run("HTTP/2", func(t *testing.T) {
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		two := &http.Transport{Protocols: protocols}
		defer two.CloseIdleConnections()
		if a := get(t, &http.Client{Transport: two}); a.status != http.StatusUpgradeRequired {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
	t.Run("gRPC", func(t *testing.T) {
		conn, err := grpc.NewClient(f.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		stream, err := kvpilotv1.NewInferenceServiceClient(conn).Realtime(t.Context(), &kvpilotv1.RealtimeRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "WebSocket") {
			t.Errorf("got %v", err)
		}
	})
	for name, c := range map[string]struct {
		path, more string
		status     int
		message    string
	}{
		"a page of another origin":  {"/v1/realtime", "Origin: http://elsewhere.example\r\n", 403, "other origins"},
		"and by what browsers say":  {"/v1/realtime", "Sec-Fetch-Site: cross-site\r\n", 403, "other origins"},
		"an unknown model":          {"/v1/realtime?model=nobody", "", 404, "nobody"},
		"a replica that is not":     {"/v1/realtime", "X-Kvpilot-Pin: r9\r\n", 404, "r9"},
		"a body":                    {"/v1/realtime", "Content-Length: 1\r\n", 400, "no body"},
		"a model that is two":       {"/v1/realtime?model=a&model=b", "", 400, "model"},
		"a name that no model has,": {"/v1/realtime?model=" + strings.Repeat("x", 600), "", 400, "model"},
	} {
		t.Run(name, func(t *testing.T) {
			s := f.webSocket(c.path, c.more, []byte("x"))
			a := answer{status: s.status, body: s.body}
			if message, _, _, _ := a.openAIError(t); s.status != c.status || !strings.Contains(message, c.message) {
				t.Errorf("%d %s", s.status, s.body)
			}
		})
	}
	t.Run("a page of this origin", func(t *testing.T) {
		s := f.opened("/v1/realtime", "Origin: http://"+f.http+"\r\nSec-Fetch-Site: same-origin\r\n")
		s.said(t, "x")
		s.Close()
	})
	for _, code := range []int{400, 401, 403, 404, 426, 500} { // of every replica: the engine's own status
		for _, e := range f.engines {
			e.SetFaults(enginesim.Faults{Where: enginesim.Where{Paths: []string{"/v1/realtime"}}, AnswerFaults: enginesim.AnswerFaults{Status: code}})
		}
		s := f.webSocket("/v1/realtime", "", nil)
		(answer{status: s.status, body: s.body}).openAIError(t)
		if s.status != code {
			t.Errorf("the engine answers %d, the client got %d %s", code, s.status, s.body)
		}
	}
	f.settled()
}

// An engine that has no such route answers with an object that is no error.
func TestRealtimeOfAnEngineWithoutIt(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1, engine: func(_ int, c *enginesim.Config) { c.Version = "0.12.0" }})
	s := f.webSocket("/v1/realtime", "", nil)
	message, _, _, code := (answer{status: s.status, body: s.body}).openAIError(t)
	if s.status != http.StatusNotFound || code != "404" || !strings.Contains(message, "not found") || s.header.Get("X-Kvpilot-Reason") == "MODEL_NOT_FOUND" {
		t.Errorf("%d %v %s", s.status, s.header, s.body)
	}
}

// Before the switch another replica is tried, after it none.
func TestRealtimeIsTriedOnAnotherReplica(t *testing.T) {
	for name, faults := range map[string]enginesim.Faults{
		"503": {AnswerFaults: enginesim.AnswerFaults{Status: 503}}, "cut": {ConnectionFaults: enginesim.ConnectionFaults{Cut: true}}, "200": {AnswerFaults: enginesim.AnswerFaults{WrongJSON: true, Status: 200}},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFleet(t, fleetOptions{replicas: 2, yaml: "chooser: {policy: round-robin}\n"})
			faults.Paths = []string{"/v1/realtime"}
			f.engines[0].SetFaults(faults)
			for range 4 {
				s := f.opened("/v1/realtime", "")
				if s.said(t, "x"); s.header.Get("X-Kvpilot-Replica") != "r1" {
					t.Errorf("at %v", s.header)
				}
			}
			if n := f.metric("kvpilot_router_retries_total"); n < 1 {
				t.Errorf("%v retries", n)
			}
		})
	}
}

func TestRealtimeNeedsAKey(t *testing.T) {
	const key = "secret-of-the-team"
	f := startFleet(t, fleetOptions{key: key, yaml: "api: {keys: [{name: team, key: " + key + "}]}\n"})
	if s := f.webSocket("/v1/realtime", "", nil); s.status != http.StatusUnauthorized || s.header.Get("Www-Authenticate") == "" {
		t.Errorf("without a key: %d %s", s.status, s.body)
	}
	f.opened("/v1/realtime", "Authorization: Bearer "+key+"\r\n").said(t, "x")
}

// A WebSocket without a word for long ends; a long silence says nothing about the rank.
func TestRealtimeThatRests(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for eight seconds")
	}
	t.Parallel()
	f := startFleet(t, fleetOptions{replicas: 2, yaml: "router: {realtime_idle: 8s}\nchooser: {stall: {after: 100ms}}\nenginestats: {interval: 100ms}\n"})
	for _, at := range []string{"r0", "r1"} { // whose counters are seen to move, and then stand still
		before := f.metric("kvpilot_enginestats_polls_total")
		f.eventually(at+"'s counters are read", func() bool {
			f.post("/v1/completions", `{"model":"sim","prompt":"hello","max_tokens":4}`, "X-Kvpilot-Pin", at)
			return f.metric("kvpilot_enginestats_polls_total") > before+8
		})
	}
	before := f.metric("kvpilot_chooser_stalls_total")
	began := time.Now()
	a, b := f.opened("/v1/realtime", ""), f.opened("/v1/realtime", "")
	time.Sleep(2 * time.Second)
	if n := f.metric("kvpilot_chooser_stalls_total") - before; n != 0 {
		t.Errorf("%v ranks were held for stalled", n)
	}
	b.said(t, "still there")
	if err := a.ended(); err != nil || time.Since(began) < 8*time.Second {
		t.Errorf("ended after %v: %v", time.Since(began), err)
	}
	b.said(t, "and now")
	f.eventually("the end is counted", func() bool {
		return f.metric("kvpilot_router_requests_total", `route="realtime"`, `reason="DEADLINE_EXCEEDED"`) == 1
	})
}

// A client that reads nothing loses its connection, and the engine is free again.
func TestRealtimeOfASlowReader(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1, yaml: "gateway: {stall_timeout: 300ms}\n"})
	s := f.opened("/v1/realtime", "")
	piece := frame(0x82, make([]byte, 1<<20))
	for {
		if _, err := s.Write(piece); err != nil { // the echo fills the way back, and then the way there
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			break
		}
	}
	f.settled()
}

func TestRealtimeAtShutdown(t *testing.T) {
	t.Parallel()
	t.Run("is cut off at the deadline", func(t *testing.T) {
		f := startFleet(t, fleetOptions{replicas: 1, yaml: "listen: {drain_timeout: 500ms}\n"})
		s := f.opened("/v1/realtime", "")
		began := time.Now()
		f.stop()
		if took := time.Since(began); took < 400*time.Millisecond || took > 10*time.Second {
			t.Errorf("stopped after %v", took)
		}
		if err := s.ended(); err != nil {
			t.Error(err)
		}
		if !strings.Contains(f.log.String(), "reason=SHUTTING_DOWN") {
			t.Errorf("the log does not say why:\n%s", f.log)
		}
	})
	t.Run("is waited for", func(t *testing.T) {
		f := startFleet(t, fleetOptions{replicas: 1, yaml: "listen: {drain_timeout: 20s}\n"})
		s := f.opened("/v1/realtime", "")
		ctx, stopped := context.WithCancel(context.Background())
		began := time.Now()
		go func() {
			f.stop()
			stopped()
		}()
		f.eventually("the router is leaving", func() bool {
			conn, err := net.Dial("tcp", f.http)
			if err == nil {
				conn.Close()
			}
			return err != nil
		})
		s.said(t, "not yet")
		if _, err := s.Write(frame(0x88, nil)); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("stopped after %v", took)
		}
	})
}
