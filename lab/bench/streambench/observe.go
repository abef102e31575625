package streambench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// The routers that Observe compares: two without tracing, whose difference is the noise; a
// collector configured and ratio 0; one trace in a hundred sent, all recorded in case they fail or
// are slow; and every trace recorded and sent.
const (
	tracesNone  = "none"
	tracesAgain = "none again"
	tracesOff   = "0%"
	tracesTail  = "1%"
	tracesAll   = "100%"
)

// Observed is the cost of watching a router, measured in CPU time of the router's process.
type Observed struct {
	// RequestUS is the CPU time of a small request without tracing, the median of its turns; the others
	// are the additions of tracing to it, the mean of the middle half of the paired turns.
	RequestUS    float64 `json:"request_us"`
	NoiseUS      float64 `json:"noise_us"` // of another router without tracing
	TracesOffUS  float64 `json:"traces_0_percent_us"`
	TracesTailUS float64 `json:"traces_1_percent_us"`
	TracesAllUS  float64 `json:"traces_100_percent_us"`
	TracesAllocs float64 `json:"traces_100_percent_allocs"` // allocations that it adds to a request
	SpreadUS     float64 `json:"spread_us"`                 // half of the pairs of 100 % lie within it
	ChunkUS      float64 `json:"chunk_us"`
	ChunkNoise   float64 `json:"chunk_noise_x"`
	ChunkOff     float64 `json:"chunk_0_percent_x"`   // CPU time of a streamed chunk against none
	ChunkAll     float64 `json:"chunk_100_percent_x"` // the throughput that remains is its inverse
	ExportedPerS float64 `json:"requests_per_s_100_percent"`

	// ConsolePercent is the addition of one viewer, in percent of one core, while ConsoleDecisions are
	// made each second.
	ConsolePercent   float64 `json:"console_percent"`
	ConsoleDecisions float64 `json:"console_decisions_per_s"`

	// Scrapes of /metrics before ScrapeReplicas replicas.
	ScrapeReplicas int     `json:"scrape_replicas"`
	ScrapeSeries   int     `json:"scrape_series"`
	ScrapeBytes    int     `json:"scrape_bytes"`
	ScrapeP50MS    float64 `json:"scrape_p50_ms"`
	ScrapeMaxMS    float64 `json:"scrape_max_ms"`
	ScrapeCPUMS    float64 `json:"scrape_cpu_ms"`
}

// scrapeReplicas is the size of the fleet that is scraped.
const scrapeReplicas = 256

// observer is one run of Observe.
type observer struct{ bench }

// Observe measures the cost of traces, the console and scrapes, and writes it to out.
func Observe(ctx context.Context, o Options, out, progress io.Writer) error {
	var r Observed
	err := o.with(ctx, progress, func(ctx context.Context, f *field) error {
		b := &observer{bench{field: f}}
		for _, part := range []struct {
			name string
			run  func(context.Context, *Observed) error
		}{{"traces", b.observeTraces}, {"console", b.observeConsole}, {"scrape", b.observeScrape}} {
			if len(o.Cases) > 0 && !slices.Contains(o.Cases, part.name) {
				continue
			}
			fmt.Fprintf(progress, "%s ...\n", part.name)
			if err := part.run(ctx, &r); err != nil {
				return fmt.Errorf("%s: %w", part.name, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if o.JSON {
		return json.MarshalWrite(out, r, jsontext.Multiline(true))
	}
	_, err = fmt.Fprintf(out, `| what | measured | bound |
|---|---|---|
| a small request without tracing | %.1f µs of CPU | |
| … in another router without tracing: the noise | %+.1f µs | |
| … tracing configured, ratio 0 | %+.1f µs | nothing measurable |
| … ratio 0.01: all recorded, failed and slow ones sent | %+.1f µs | |
| … every trace recorded and exported | %+.1f µs, half of the pairs within %.1f | 80 µs |
| … its allocations | %+.1f | |
| a streamed chunk in another router without tracing | × %.3f | |
| … ratio 0 against none | × %.3f | nothing measurable |
| … every trace against none | × %.3f | × 1.10 |
| a viewer of the console at %.0f decisions a second | %.2f %% of a core | 1 %% |
| a scrape before %d replicas: %d series, %d KiB | p50 %.1f ms, longest %.1f ms, %.1f ms of CPU | 50 ms |
`, r.RequestUS, r.NoiseUS, r.TracesOffUS, r.TracesTailUS, r.TracesAllUS, r.SpreadUS, r.TracesAllocs, r.ChunkNoise, r.ChunkOff, r.ChunkAll, r.ConsoleDecisions, r.ConsolePercent,
		r.ScrapeReplicas, r.ScrapeSeries, r.ScrapeBytes>>10, r.ScrapeP50MS, r.ScrapeMaxMS, r.ScrapeCPUMS)
	return err
}

// observeTraces has the five routers take turns, in changing order, and compares each turn with the turn of the router without tracing,
// which runs in parallel.
func (b *observer) observeTraces(ctx context.Context, r *Observed) error {
	collector, err := b.role(ctx, "collector")
	if err != nil {
		return err
	}
	defer collector.stop()
	if b.upstream, err = b.role(ctx, "upstream"); err != nil {
		return err
	}
	endpoint := "telemetry.traces.endpoint=" + collector.address
	for _, s := range []struct {
		name string
		set  []string
	}{
		// The console shows traces of a router that sends none, unless the ratio is 0.
		{tracesNone, []string{"telemetry.traces.ratio=0"}},
		{tracesAgain, []string{"telemetry.traces.ratio=0"}},
		{tracesOff, []string{endpoint, "telemetry.traces.ratio=0"}},
		{tracesTail, []string{endpoint, "telemetry.traces.ratio=0.01"}},
		{tracesAll, []string{endpoint, "telemetry.traces.ratio=1"}},
	} {
		p, err := b.startRouter(ctx, s.name, s.set...)
		if err != nil {
			return err
		}
		b.subjects = append(b.subjects, p)
	}
	if err := b.setUpstream(ctx, 200, 10*time.Millisecond, false); err != nil {
		return err
	}
	// Short turns, many of them: a disturbance of the machine hits all routers alike.
	requests := func(ctx context.Context, p *process) ([]time.Duration, int, error) {
		latencies, err := unary(ctx, p.address, 4, b.scaled(1000), 200)
		return latencies, len(latencies), err
	}
	small, err := b.paired(ctx, "traces-request", b.options.Rounds, requests)
	if err != nil {
		return err
	}
	r.RequestUS, r.ExportedPerS = small.median(tracesNone, cpuPerUnit), small.median(tracesAll, perSecond)
	r.NoiseUS, r.TracesOffUS, r.TracesTailUS, r.TracesAllUS = small.beyond(tracesAgain), small.beyond(tracesOff), small.beyond(tracesTail), small.beyond(tracesAll)
	r.SpreadUS = small.spread(tracesAll)
	b.counting = true
	counted, err := b.paired(ctx, "", 3, requests)
	if b.counting = false; err != nil {
		return err
	}
	r.TracesAllocs = counted.median(tracesAll, allocsPerUnit) - counted.median(tracesNone, allocsPerUnit)
	n := b.scaled(64)
	stream, err := b.paired(ctx, "traces-stream", (b.options.Rounds+4)/5, func(ctx context.Context, p *process) ([]time.Duration, int, error) {
		latencies, err := streams(ctx, p.address, n, 10*time.Millisecond, 0)
		return latencies, n * 200, err
	})
	if err != nil {
		return err
	}
	r.ChunkUS, r.ChunkNoise = stream.median(tracesNone, cpuPerUnit), stream.times(tracesAgain)
	r.ChunkOff, r.ChunkAll = stream.times(tracesOff), stream.times(tracesAll)
	return nil
}

// observeConsole has a router work at a steady pace, with a viewer of its console half of the time.
func (b *observer) observeConsole(ctx context.Context, r *Observed) error {
	if b.upstream == nil {
		var err error
		if b.upstream, err = b.role(ctx, "upstream"); err != nil {
			return err
		}
	}
	p, err := b.startRouter(ctx, "console")
	if err != nil {
		return err
	}
	defer p.stop()
	working, rest := context.WithCancel(ctx)
	defer rest()
	decisions := pace(working, p.address, 8, 8*time.Millisecond)
	time.Sleep(2 * time.Second) // connections are open and rates learned
	var spent [2]time.Duration  // without and with a viewer
	window := time.Duration(float64(5*time.Second) * max(b.options.Scale, .1))
	before, began := decisions.load(), time.Now()
	rounds := max(b.options.Rounds/3, 4)
	for i := range rounds {
		for _, viewed := range []int{i % 2, 1 - i%2} {
			leave := func() {}
			if viewed == 1 {
				leave = view(ctx, p.debug)
			}
			from, err := p.cpu()
			if err != nil {
				return err
			}
			time.Sleep(window)
			to, err := p.cpu()
			leave()
			if err != nil {
				return err
			}
			spent[viewed] += to - from
		}
	}
	r.ConsoleDecisions = float64(decisions.load()-before) / time.Since(began).Seconds()
	r.ConsolePercent = 100 * float64(spent[1]-spent[0]) / float64(time.Duration(rounds)*window)
	return decisions.err()
}

// view watches a console as a browser does, until leave is called.
func view(ctx context.Context, admin string) (leave func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			since := url.QueryEscape(time.Now().UTC().Format(time.RFC3339))
			for _, path := range []string{"status", "replicas", "loads", "decisions?page_size=25&only_chosen=true", "history?since=" + since} {
				_ = fetch(ctx, "http://"+admin+"/kvpilot/v1/"+path)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); done.Wait() }
}

// fetch reads an answer to its end.
func fetch(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", address, resp.Status)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// observeScrape reads /metrics of a router before many replicas.
func (b *observer) observeScrape(ctx context.Context, r *Observed) error {
	many, err := b.role(ctx, "upstreams", fmt.Sprint(scrapeReplicas))
	if err != nil {
		return err
	}
	defer many.stop()
	var list strings.Builder
	for i, address := range strings.Fields(many.address) {
		fmt.Fprintf(&list, "    - {id: replica-%d, url: \"http://%s\", events: {endpoint: \"tcp://%s\"}}\n", i, address, address)
	}
	file := b.dir + "/many.yaml"
	if err := os.WriteFile(file, []byte("registry:\n  replicas:\n"+list.String()), 0o600); err != nil {
		return err
	}
	p, err := b.startServing(ctx, "scrape", "--config", file)
	if err != nil {
		return err
	}
	defer p.stop()
	if err := allReady(ctx, p, scrapeReplicas); err != nil {
		return err
	}
	if _, err := unary(ctx, p.address, 4, b.scaled(4000), 200); err != nil { // so that every series has been used
		return err
	}
	var took []float64
	from, err := p.cpu()
	if err != nil {
		return err
	}
	const scrapes = 40
	for range scrapes {
		began := time.Now()
		text, err := measure.Get(ctx, p.debug, "/metrics")
		if err != nil {
			return err
		}
		took = append(took, float64(time.Since(began))/1e6)
		r.ScrapeBytes, r.ScrapeSeries = len(text), countSeries(text)
	}
	to, err := p.cpu()
	r.ScrapeReplicas, r.ScrapeCPUMS = scrapeReplicas, float64(to-from)/1e6/scrapes
	r.ScrapeP50MS, r.ScrapeMaxMS = measure.Median(took), slices.Max(took)
	return err
}

func countSeries(text string) (n int) {
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
		if line := s.Text(); line != "" && line[0] != '#' {
			n++
		}
	}
	return n
}

// allReady waits until a router has found all its replicas ready.
func allReady(ctx context.Context, p *process, want int) error {
	return measure.Await(ctx, time.Minute, func() error {
		text, err := measure.Get(ctx, p.address, "/kvpilot/v1/replicas")
		if n := strings.Count(text, "REPLICA_STATE_READY"); err == nil && n < want {
			err = fmt.Errorf("%d of %d replicas are ready", n, want)
		}
		return err
	})
}

// ServeCollector is the main function of a process that takes spans over OTLP and forgets them.
func ServeCollector(ctx context.Context, out io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := forgetful()
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	fmt.Fprintln(out, l.Addr())
	return s.Serve(l)
}
