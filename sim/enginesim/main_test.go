package enginesim_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/sim/enginesim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// replica is an engine under test on a loopback port.
type replica struct {
	*enginesim.Engine
	url            string
	events, replay string
	client         *http.Client
}

// fast is a small, quick engine.
func fast() enginesim.Config {
	c := enginesim.DefaultConfig()
	c.Core.Blocks, c.Core.MaxModelLen = 513, 4096
	c.Core.Timing.Speed = 50
	c.MeanAnswer = 20
	return c
}

func start(t *testing.T, cfg enginesim.Config) *replica {
	t.Helper()
	listen := func() net.Listener {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return ln
	}
	p := enginesim.Params{HTTP: listen()}
	for range cfg.Ranks {
		p.Events = append(p.Events, listen())
		p.Replays = append(p.Replays, listen())
	}
	e, err := enginesim.New(cfg, p)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	tr := &http.Transport{MaxConnsPerHost: 0}
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		tr.CloseIdleConnections()
	})
	r := &replica{
		Engine: e, url: "http://" + p.HTTP.Addr().String(), client: &http.Client{Transport: tr, Timeout: 20 * time.Second},
		events: "tcp://" + p.Events[0].Addr().String(), replay: "tcp://" + p.Replays[0].Addr().String(),
	}
	eventually(t, "the engine to be up", func() bool { return r.Stats() != nil })
	return r
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); {
		if ok() {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
	t.Fatalf("waited in vain for %s", what)
}

// post sends body and gives the answer, whatever it is.
func (r *replica) post(t *testing.T, path, body string, header ...string) (int, []byte) {
	t.Helper()
	resp := r.send(t, t.Context(), path, body, header...)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read %s: %v", path, err)
	}
	return resp.StatusCode, b
}

func (r *replica) send(t *testing.T, ctx context.Context, path, body string, header ...string) *http.Response {
	t.Helper()
	resp, err := r.try(ctx, path, body, header...)
	if err != nil {
		t.Fatalf("POST %s: %v", path, err)
	}
	return resp
}

// try is send for a request that may get no answer.
func (r *replica) try(ctx context.Context, path, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return r.client.Do(req)
}

func (r *replica) get(t *testing.T, path string) (int, []byte) {
	t.Helper()
	resp, err := r.client.Get(r.url + path)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, b
}

// decode reads JSON into a generic value.
func decode(t *testing.T, b []byte) map[string]any {
	t.Helper()
	var v map[string]any
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return v
}

// events splits a stream into the values of its data lines.
func events(t *testing.T, body []byte) []string {
	t.Helper()
	var list []string
	sc := bufio.NewScanner(bytes.NewReader(body))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		if data, ok := strings.CutPrefix(sc.Text(), "data: "); ok {
			list = append(list, data)
		}
	}
	return list
}

func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

func cachedOf(t *testing.T, body []byte) int {
	t.Helper()
	n, _ := at(decode(t, body), "usage", "prompt_tokens_details", "cached_tokens").(float64)
	return int(n)
}

// idleConn makes one request on a connection of its own and leaves it open.
func (r *replica) idleConn(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return conn
}
