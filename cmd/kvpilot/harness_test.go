package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/programs"
)

// TestMain runs the tests; some start this binary again as a process of its own. More of them run at once than there are
// processors: they wait more than they compute.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "serve" || os.Args[1] == "sim") {
		main()
		os.Exit(0)
	}
	_ = flag.Set("test.parallel", "4")
	goleak.VerifyTestMain(m)
}

// fleet is a router, started as main starts it, before simulated replicas.
type fleet struct {
	t       *testing.T
	engines []*enginesim.Engine
	urls    []string
	file    string // the settings
	text    string // what startFleet wrote there
	http    string
	grpc    string
	admin   string
	log     *programs.Log
	stop    func()
}

// fleetOptions change what startFleet makes.
type fleetOptions struct {
	replicas int
	engine   func(i int, c *enginesim.Config)
	listen   func(net.Listener) net.Listener // stands before the replicas' listeners
	noEvents bool
	yaml     string
	args     []string
	ready    func(f *fleet) bool // in place of asking for the replicas without a key
	key      string              // an API key that the file asks for
	scheme   string              // of the replicas' URLs, http unless it is said
	labels   string              // of the replicas, as YAML
}

// startFleet starts replicas and router and waits until the router takes requests.
func startFleet(t *testing.T, o fleetOptions) *fleet {
	t.Helper()
	f := &fleet{t: t, log: &programs.Log{}}
	if o.replicas == 0 {
		o.replicas = 2
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var list strings.Builder
	for i := range o.replicas {
		c := enginesim.DefaultConfig()
		c.Core.Timing.Speed = 20
		c.MeanAnswer = 8
		if o.engine != nil {
			o.engine(i, &c)
		}
		p := enginesim.Params{HTTP: listen(t)}
		if o.listen != nil {
			p.HTTP = o.listen(p.HTTP)
		}
		events, replays := []net.Listener{}, []net.Listener{}
		if !o.noEvents {
			for range c.Ranks {
				events, replays = append(events, listen(t)), append(replays, listen(t))
			}
			p.Events, p.Replays = events, replays
		}
		engine, err := enginesim.New(c, p)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if err := engine.Run(ctx); err != nil {
				t.Errorf("replica %d: %v", i, err)
			}
		})
		f.engines = append(f.engines, engine)
		url := cmp.Or(o.scheme, "http") + "://" + p.HTTP.Addr().String()
		f.urls = append(f.urls, url)
		fmt.Fprintf(&list, "  - id: r%d\n    url: %s\n    ranks: %d\n", i, url, c.Ranks)
		if o.labels != "" {
			fmt.Fprintf(&list, "    labels: %s\n", o.labels)
		}
		if !o.noEvents {
			fmt.Fprintf(&list, "    events: {endpoint: \"tcp://%s\", replay: \"tcp://%s\"}\n", events[0].Addr(), replays[0].Addr())
		}
	}
	file := filepath.Join(t.TempDir(), "kvpilot.yaml")
	text := "registry:\n  probe: {interval: 200ms, max_interval: 1s, up: 1}\n  replicas:\n" + indent(list.String()) + o.yaml
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f.file, f.text = file, text
	args := append([]string{"serve", "--config", file, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, o.args...)
	served := make(chan error, 1)
	serveCtx, stopServe := context.WithCancel(context.Background())
	go func() { served <- run(serveCtx, args, nil, io.Discard, f.log) }()
	var once sync.Once
	f.stop = func() {
		once.Do(func() {
			stopServe()
			if err := <-served; err != nil {
				t.Errorf("serve: %v", err)
			}
			cancel()
			wg.Wait()
			http.DefaultClient.CloseIdleConnections()
			if t.Failed() {
				t.Logf("router's log:\n%s", f.log)
			}
		})
	}
	t.Cleanup(f.stop)
	f.http, f.grpc, f.admin = f.addresses(served)
	f.eventually("every replica is ready", func() bool {
		if o.ready != nil {
			return o.ready(f)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+f.http+"/kvpilot/v1/replicas", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+cmp.Or(o.key, "key-of-a-")) // for settings with keys
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return err == nil && bytes.Count(text, []byte("REPLICA_STATE_READY")) == o.replicas
	})
	return f
}

func indent(text string) string {
	return "  " + strings.TrimSuffix(strings.ReplaceAll(text, "\n", "\n  "), "  ")
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var serving = regexp.MustCompile(`msg=serving http=(\S+) grpc=(\S+) admin=(\S+)`)

// addresses reads from the log where the doors are.
func (f *fleet) addresses(served chan error) (string, string, string) {
	f.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		if m := serving.FindStringSubmatch(f.log.String()); m != nil {
			return m[1], m[2], m[3]
		}
		select {
		case err := <-served:
			served <- err
			f.t.Fatalf("serve ended: %v\n%s", err, f.log)
		case <-time.After(5 * time.Millisecond):
		}
	}
	f.t.Fatalf("the router did not say where it serves:\n%s", f.log)
	return "", "", ""
}

// eventually waits for something that real sockets bring about.
func (f *fleet) eventually(what string, done func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if done() {
			return
		}
	}
	f.t.Fatalf("%s: not within 20s\n%s", what, f.log)
}

// answer is what a client saw.
type answer struct {
	status int
	header http.Header
	body   []byte
	err    error
}

// post sends a JSON body through the REST surface.
func (f *fleet) post(path, body string, header ...string) answer {
	f.t.Helper()
	return postTo(f.t, "http://"+f.http+path, body, header...)
}

func postTo(t *testing.T, url, body string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: text, err: err}
}

// events splits a stream into its data lines.
func (a answer) events() []string {
	var list []string
	for s := bufio.NewScanner(bytes.NewReader(a.body)); s.Scan(); {
		if data, ok := strings.CutPrefix(s.Text(), "data: "); ok {
			list = append(list, data)
		}
	}
	return list
}

// openAIError is the error in an answer's body.
func (a answer) openAIError(t *testing.T) (message, kind, param, code string) {
	t.Helper()
	var body struct {
		Error struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Code    any     `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(a.body, &body); err != nil || body.Error.Message == "" {
		t.Fatalf("status %d, body %q is no error in OpenAI's shape: %v", a.status, a.body, err)
	}
	if body.Error.Param != nil {
		param = *body.Error.Param
	}
	return body.Error.Message, body.Error.Type, param, fmt.Sprint(body.Error.Code)
}

// metric sums the samples of a metric whose labels contain all of the given texts.
func (f *fleet) metric(name string, labels ...string) float64 {
	f.t.Helper()
	resp, err := http.Get("http://" + f.admin + "/metrics")
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	sum := 0.0
	s := bufio.NewScanner(resp.Body)
	s.Buffer(nil, 1<<20)
next:
	for s.Scan() {
		line := s.Text()
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(rest, l) {
				continue next
			}
		}
		var v float64
		if _, err := fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &v); err == nil {
			sum += v
		}
	}
	return sum
}
