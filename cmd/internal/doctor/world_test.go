package doctor

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/kit/memlimit"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// TestMain lets more tests run at once than there are processors: they wait for sockets that say nothing.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "4")
	goleak.VerifyTestMain(m)
}

// world is a set-up of two simulated replicas and the settings for them. Its zero value has no fault.
type world struct {
	t *testing.T
	// replicas is their number, two unless it is said.
	replicas int
	engine   func(i int, c *enginesim.Config)
	faults   func(i int) enginesim.Faults
	// listen stands before the replicas' HTTP listeners.
	listen func(net.Listener) net.Listener
	scheme string
	// url replaces a replica's base URL.
	url func(i int, url string) string
	// replica gives further settings of a replica, as lines of YAML; nil: its sockets.
	replica func(i int, r running) string
	// registry and yaml are added to the settings.
	registry, yaml string
	params         func(p *Params)
	// past is what the replicas have done before the router looks.
	past func(list []running)
}

// running is a simulated replica and where it listens.
type running struct {
	engine          *enginesim.Engine
	url             string
	events, replays []string
}

func (r running) sockets() string {
	return fmt.Sprintf("events: {endpoint: %q, replay: %q}", r.events[0], r.replays[0])
}

func listener(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// consecutive opens n neighbouring ports: the ranks of a replica.
func consecutive(t *testing.T, n int) (list []net.Listener) {
	t.Helper()
	for range 100 {
		first := listener(t)
		list = append(list[:0], first)
		port := first.Addr().(*net.TCPAddr).Port
		for i := 1; i < n; i++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+i))
			if err != nil {
				break
			}
			list = append(list, l)
		}
		if len(list) == n {
			return list
		}
		for _, l := range list {
			l.Close()
		}
	}
	t.Fatal("no neighbouring ports are free")
	return nil
}

// start starts the replicas and writes the settings.
func (w *world) start(t *testing.T) Params {
	t.Helper()
	w.t = t
	ctx, stop := context.WithCancel(context.Background())
	var engines sync.WaitGroup
	t.Cleanup(func() { stop(); engines.Wait() })
	if w.replicas == 0 {
		w.replicas = 2
	}
	var text strings.Builder
	text.WriteString("listen: {http: '127.0.0.1:0', grpc: '127.0.0.1:0', admin: '127.0.0.1:0'}\nkvevents: {replay_timeout: 300ms}\nregistry:\n" + w.registry + "  replicas:\n")
	var list []running
	for i := range w.replicas {
		r := w.serve(ctx, &engines, i)
		list = append(list, r)
		url := r.url
		if w.url != nil {
			url = w.url(i, url)
		}
		fmt.Fprintf(&text, "    - id: r%d\n      url: %s\n", i, url)
		lines := r.sockets()
		if w.replica != nil {
			lines = w.replica(i, r)
		}
		for line := range strings.Lines(lines) {
			fmt.Fprintf(&text, "      %s\n", strings.TrimSpace(line))
		}
	}
	text.WriteString(w.yaml)
	if w.past != nil {
		w.past(list)
	}
	file := filepath.Join(t.TempDir(), "kvpilot.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	p := Params{Source: config.Source{File: file}, Limit: time.Minute, machine: &fakeMachine{files: 65536, procs: 2, memory: memlimit.Limit{Bytes: 1 << 30, From: "control group"}}}
	if w.params != nil {
		w.params(&p)
	}
	return p
}

// fakeMachine has the limits that a test sets.
type fakeMachine struct {
	files  uint64
	procs  int
	memory memlimit.Limit
	texts  map[string]string // of files
}

func (m *fakeMachine) Files() (uint64, bool)   { return m.files, true }
func (m *fakeMachine) Processors() int         { return m.procs }
func (m *fakeMachine) Read(name string) string { return m.texts[name] }

func (m *fakeMachine) Memory(c memlimit.Config) memlimit.Limit {
	if c.MaxBytes > 0 && m.memory.From == "control group" {
		return memlimit.Limit{Bytes: int64(c.MaxBytes), From: "setting"}
	}
	return m.memory
}

func (w *world) serve(ctx context.Context, engines *sync.WaitGroup, i int) running {
	c := enginesim.DefaultConfig()
	c.Core.Timing.Speed, c.MeanAnswer = 20, 8
	if w.engine != nil {
		w.engine(i, &c)
	}
	http := listener(w.t)
	r := running{url: cmp.Or(w.scheme, "http") + "://" + http.Addr().String()}
	p := enginesim.Params{HTTP: http, Events: consecutive(w.t, c.Ranks), Replays: consecutive(w.t, c.Ranks)}
	if w.listen != nil {
		p.HTTP = w.listen(http)
	}
	for rank := range c.Ranks {
		r.events, r.replays = append(r.events, "tcp://"+p.Events[rank].Addr().String()), append(r.replays, "tcp://"+p.Replays[rank].Addr().String())
	}
	var err error
	if r.engine, err = enginesim.New(c, p); err != nil {
		w.t.Fatal(err)
	}
	if w.faults != nil {
		r.engine.SetFaults(w.faults(i))
	}
	engines.Go(func() {
		if err := r.engine.Run(ctx); err != nil {
			w.t.Errorf("replica %d: %v", i, err)
		}
	})
	return r
}

// want is what one check is to find.
type want struct {
	status  Status
	subject string
	// seen and change must be in the finding.
	seen, change string
}

// expect runs all checks: those in wants must find what is said there, and no other one anything but ok and not tested.
func expect(t *testing.T, p Params, wants map[string]want) {
	t.Helper()
	judge(t, Local(t.Context(), p), wants)
}

func judge(t *testing.T, results []Result, wants map[string]want) {
	t.Helper()
	left := map[string]bool{}
	for name := range wants {
		left[name] = true
	}
	for _, r := range results {
		delete(left, r.Check)
		w, expected := wants[r.Check]
		found := false
		for _, f := range r.Findings {
			bad := f.Status == Fail || f.Status == Warn
			switch {
			case bad && !expected:
				t.Errorf("%s found %+v", r.Check, f)
			case bad && (f.Expected == "" || f.Seen == "" || f.Change == ""):
				t.Errorf("%s: a finding without advice: %+v", r.Check, f)
			}
			found = found || f.Status == w.status && f.Subject == w.subject && strings.Contains(f.Seen, w.seen) && strings.Contains(f.Change, w.change)
		}
		if expected && (!found || r.Status != w.status) {
			t.Errorf("%s is %s with %+v, want %+v", r.Check, r.Status, r.Findings, w)
		}
	}
	for name := range left {
		t.Errorf("there is no check %s", name)
	}
}

// refusing returns an address that refuses connections until the test ends: its port is taken, so that nothing else that runs
// now listens there, and nothing accepts.
func refusing(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Close(fd); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
}
