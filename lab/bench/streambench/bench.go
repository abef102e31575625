package streambench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
	"github.com/kvpilot/kvpilot/lab/install"
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
	// Peers is a folder with a virtual environment for each router from PyPI; Install makes the missing ones.
	Peers   string
	Install bool
	// JSON writes the results as JSON, else as a table.
	JSON bool
}

// bench is one run.
type bench struct {
	*field
	results  []Result
	round    int  // of the case that runs; it seeds the phases of streams
	counting bool // allocations are counted
	// warm, when set, prepares a subject for its turn; it is not measured.
	warm func(context.Context, *process) error
}

// Run measures and writes the results to out; progress takes remarks.
func Run(ctx context.Context, o Options, out, progress io.Writer) error {
	return o.with(ctx, progress, func(ctx context.Context, f *field) error {
		if err := f.startAll(ctx); err != nil {
			return err
		}
		b := &bench{field: f}
		if err := b.cases(ctx); err != nil {
			return err
		}
		if o.JSON {
			return json.MarshalWrite(out, map[string]any{"results": b.results}, jsontext.Multiline(true), json.Deterministic(true))
		}
		return b.table(out)
	})
}

// with makes the surroundings of a run, runs it and cleans up.
func (o Options) with(ctx context.Context, progress io.Writer, run func(context.Context, *field) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	dir, err := os.MkdirTemp("", "kvpilot-bench-")
	if err != nil {
		return err
	}
	f := &field{launcher: launcher{self: o.Self, serve: o.Serve, peers: o.Peers, dir: dir, progress: progress}, options: o}
	defer f.cleanup()
	if o.Profiles != "" {
		if err := os.MkdirAll(o.Profiles, 0o750); err != nil {
			return err
		}
	}
	return run(ctx, f)
}

// field is the subjects of a run before their upstream.
type field struct {
	launcher
	options  Options
	subjects []*process
}

func (f *field) cleanup() {
	for _, p := range f.subjects {
		p.stop()
	}
	if f.upstream != nil {
		f.upstream.stop()
	}
	os.RemoveAll(f.dir)
}

func (f *field) startAll(ctx context.Context) error {
	var err error
	if f.upstream, err = f.role(ctx, "upstream"); err != nil {
		return err
	}
	for _, name := range f.options.Subjects {
		p, err := f.startSubject(ctx, name)
		if errors.Is(err, install.ErrAbsent) {
			fmt.Fprintf(f.progress, "%s: left out: %v\n", name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
		f.subjects = append(f.subjects, p)
	}
	return nil
}

// scaled shrinks a number of streams or requests.
func (f *field) scaled(n int) int { return max(int(float64(n)*f.options.Scale), 4) }

// cases runs the selected ones.
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

// setUpstream changes the behaviour of all subjects' upstreams.
func (f *field) setUpstream(ctx context.Context, chunks int, every time.Duration, hold bool) error {
	held := 0
	if hold {
		held = 1
	}
	for _, u := range f.upstreams() {
		if _, err := measure.Get(ctx, u.address, fmt.Sprintf("/bench/set?chunks=%d&every=%d&hold=%d", chunks, every, held)); err != nil {
			return err
		}
	}
	return nil
}

// upstreams are the common upstream and the subjects' own ones.
func (f *field) upstreams() []*process {
	all := []*process{f.upstream}
	for _, p := range f.subjects {
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
