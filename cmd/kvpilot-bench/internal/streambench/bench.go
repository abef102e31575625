package streambench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The subjects.
const (
	Direct       = "direct" // no proxy at all
	ReverseProxy = "reverseproxy"
	Kvpilot      = "kvpilot"
	// Followed and Unfollowed have the upstream twice, so that streams could be resumed; only the first follows them.
	Followed   = "kvpilot-followed"
	Unfollowed = "kvpilot-unfollowed"
	RelayLean  = "relay-lean"
	Nginx      = "nginx"
	HAProxy    = "haproxy"
)

// Options say what to measure.
type Options struct {
	// Self is the command that runs a role of this binary: Self + ["upstream"] and so on.
	Self []string
	// Serve is the command that starts kvpilot with its configuration file appended.
	Serve []string
	// Subjects in the order of their turns; the reverse proxy comes first.
	Subjects []string
	// Cases by name; empty means all.
	Cases []string
	// Rounds of each timed case.
	Rounds int
	// Scale shrinks the numbers of streams and requests of every case; 1 is full size.
	Scale float64
	// Profiles is a folder for a CPU profile of kvpilot per case, taken in an additional round; empty takes none.
	Profiles string
	// Peers is a folder with a virtual environment for each router from PyPI; Install makes those that are missing.
	Peers   string
	Install bool
	// JSON writes the results as JSON, else as a table.
	JSON bool
}

// bench is one run.
type bench struct {
	options  Options
	dir      string
	upstream *process
	subjects []*process
	results  []Result
	progress io.Writer
	round    int  // of the case that runs; it seeds the phases of streams
	counting bool // allocations are counted
	// warm, when set, prepares a subject for its turn; it is not measured.
	warm func(context.Context, *process) error
	// pin is put before a router's command, to keep it on one core; seed is that of the last turn's bodies.
	pin  []string
	seed int
}

// Run measures and writes the results to out; progress takes remarks.
func Run(ctx context.Context, o Options, out, progress io.Writer) error {
	return o.with(ctx, progress, func(ctx context.Context, b *bench) error {
		if err := b.startAll(ctx); err != nil {
			return err
		}
		if err := b.cases(ctx); err != nil {
			return err
		}
		if o.JSON {
			return json.MarshalWrite(out, map[string]any{"results": b.results}, jsontext.Multiline(true), json.Deterministic(true))
		}
		return b.table(out)
	})
}

// with makes what a run needs, runs it and cleans up.
func (o Options) with(ctx context.Context, progress io.Writer, run func(context.Context, *bench) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	dir, err := os.MkdirTemp("", "kvpilot-bench-")
	if err != nil {
		return err
	}
	b := &bench{options: o, dir: dir, progress: progress}
	defer b.cleanup()
	if o.Profiles != "" {
		if err := os.MkdirAll(o.Profiles, 0o750); err != nil {
			return err
		}
	}
	return run(ctx, b)
}

func (b *bench) cleanup() {
	for _, p := range b.subjects {
		p.stop()
	}
	if b.upstream != nil {
		b.upstream.stop()
	}
	os.RemoveAll(b.dir) //nolint:errcheck // in the system's temporary folder
}

func (b *bench) startAll(ctx context.Context) error {
	var err error
	if b.upstream, err = b.role(ctx, "upstream"); err != nil {
		return err
	}
	for _, name := range b.options.Subjects {
		p, err := b.startSubject(ctx, name)
		if errors.Is(err, errAbsent) {
			fmt.Fprintf(b.progress, "%s: left out: %v\n", name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
		b.subjects = append(b.subjects, p)
	}
	return nil
}

// role starts a role of this binary.
func (b *bench) role(ctx context.Context, name string, args ...string) (*process, error) {
	return start(ctx, name, slices.Concat(b.options.Self, []string{name}, args)...)
}

// errAbsent says that a program is not installed.
var errAbsent = errors.New("not installed")

func (b *bench) startSubject(ctx context.Context, name string) (*process, error) {
	switch name {
	case Direct:
		return &process{name: Direct, address: b.upstream.address}, nil
	case ReverseProxy, RelayLean:
		return b.role(ctx, name, b.upstream.address)
	case Kvpilot:
		return b.startRouter(ctx, Kvpilot)
	case Followed, Unfollowed:
		_, port, err := net.SplitHostPort(b.upstream.address)
		if err != nil {
			return nil, err
		}
		args := []string{"--replica", "http://" + b.upstream.address, "--replica", "http://localhost:" + port}
		if name == Unfollowed {
			args = append(args, "--set", "router.resume_streams=0")
		}
		return b.startServing(ctx, name, args...)
	case Nginx:
		return b.startNginx(ctx)
	case HAProxy:
		return b.startHAProxy(ctx)
	}
	return nil, fmt.Errorf("no such subject")
}

// scaled shrinks a number of streams or requests.
func (b *bench) scaled(n int) int { return max(int(float64(n)*b.options.Scale), 4) }

// cases runs those that were asked for.
func (b *bench) cases(ctx context.Context) error {
	all := []struct {
		name string
		run  func() error
	}{
		{"stream-64", func() error {
			return b.streamCase(ctx, "stream-64", b.scaled(64), 200, 10*time.Millisecond, b.options.Rounds)
		}},
		{"stream-256", func() error {
			return b.streamCase(ctx, "stream-256", b.scaled(256), 100, 20*time.Millisecond, b.options.Rounds)
		}},
		{"stream-512", func() error {
			return b.streamCase(ctx, "stream-512", b.scaled(512), 60, 50*time.Millisecond, b.options.Rounds)
		}},
		{"allocs", func() error { return b.allocCase(ctx, b.scaled(64)) }},
		{"small-request", func() error { return b.unaryCase(ctx, "small-request", 4, b.scaled(4000), 200, b.options.Rounds) }},
		{"large-request", func() error { return b.unaryCase(ctx, "large-request", 2, b.scaled(200), 1<<20, b.options.Rounds) }},
		{"idle", func() error { return b.idleCase(ctx, b.scaled(5000)) }},
		{"aborted", func() error { return b.abortCase(ctx, b.scaled(10000)) }},
	}
	for _, c := range all {
		if len(b.options.Cases) > 0 && !slices.Contains(b.options.Cases, c.name) {
			continue
		}
		fmt.Fprintf(b.progress, "%s ...\n", c.name)
		if err := c.run(); err != nil {
			return err
		}
	}
	return nil
}

// setUpstream changes what the upstreams of all subjects do.
func (b *bench) setUpstream(ctx context.Context, chunks int, every time.Duration, hold bool) error {
	held := 0
	if hold {
		held = 1
	}
	for _, u := range b.upstreams() {
		if _, err := get(ctx, u.address, fmt.Sprintf("/bench/set?chunks=%d&every=%d&hold=%d", chunks, every, held)); err != nil {
			return err
		}
	}
	return nil
}

// upstreams are the one that subjects share, and those of their own.
func (b *bench) upstreams() []*process {
	all := []*process{b.upstream}
	for _, p := range b.subjects {
		if p.upstream != nil {
			all = append(all, p.upstream)
		}
	}
	return all
}

func (b *bench) add(r Result) { b.results = append(b.results, r) }

// table writes the results for people.
func (b *bench) table(out io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "| case | subject | CPU µs | × | p50 µs | × | added × | p99 µs | × | added × | allocs | per s | bytes/idle | leaked |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	cell := func(v float64) string {
		if v == 0 {
			return "–"
		}
		return fmt.Sprint(v)
	}
	for _, r := range b.results {
		leaked := "–"
		if r.Leaked != nil {
			leaked = fmt.Sprint(*r.Leaked)
		}
		var allocs float64
		if r.AllocsPerChunk != nil {
			allocs = *r.AllocsPerChunk
		}
		fmt.Fprintf(&text, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", r.Case, r.Subject, cell(r.CPUPerUnit), cell(r.CPUVsReverse),
			cell(r.P50), cell(r.P50VsReverse), cell(r.P50AddedVsReverse), cell(r.P99), cell(r.P99VsReverse), cell(r.P99AddedVsReverse), cell(allocs), cell(r.PerSecond), cell(float64(r.BytesPerIdle)), leaked)
	}
	_, err := io.WriteString(out, text.String())
	return err
}
