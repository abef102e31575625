package streambench

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// voidShare is the share of a sample's wall time, on all cores, above which time that was stolen or used by processes
// outside the benchmark makes the sample void.
const voidShare = 0.15

// costCase is one kind of work.
type costCase struct {
	name string
	// size is the body's, in bytes; shared is the part of it that all requests have in common.
	size     int
	shared   float64
	requests int
	// streams, when above zero, makes it that many streams at once instead of requests.
	streams int
}

var costCases = []costCase{
	{name: "1k", size: 1 << 10, requests: 1200},
	{name: "32k-new", size: 32 << 10, requests: 400},
	{name: "256k-new", size: 256 << 10, requests: 80},
	{name: "32k-shared-90", size: 32 << 10, shared: 0.9, requests: 400},
	{name: "stream-64", streams: 64},
	{name: "stream-256", streams: 256},
}

// CostResult is one case of one subject: the medians of its samples. Void samples count only when all are void.
type CostResult struct {
	Case    string  `json:"case"`
	Subject string  `json:"subject"`
	CPU     float64 `json:"cpu_us"` // per request, or per chunk of a stream
	// P50Added is the median latency of a request on an idle connection, less that without a router.
	P50Added float64 `json:"p50_added_us,omitempty"`
	// Resident is the memory after the case, without a garbage collection by request; Peak the most so far, of the case memory.
	Resident int64 `json:"resident_bytes"`
	Peak     int64 `json:"peak_bytes,omitempty"`
	// Requests is how many the case memory sent.
	Requests int `json:"requests,omitempty"`
	Samples  int `json:"samples"`
	Void     int `json:"void_samples"`
}

// costSample is one turn of one subject.
type costSample struct {
	cpu      float64
	p50      float64
	resident int64
	void     bool
}

// costBench is one run of Cost. seed is the seed of the last turn's bodies, round seeds the phases of streams.
type costBench struct {
	*field
	round, seed int
}

// Cost measures the cost of a request and a chunk to each router, and writes the results to out. Each router runs on one core,
// the benchmark and the upstream on the others. The samples of the routers are interleaved.
func Cost(ctx context.Context, o Options, out, progress io.Writer) error {
	return o.with(ctx, progress, func(ctx context.Context, f *field) error {
		b := &costBench{field: f}
		if taskset, err := exec.LookPath("taskset"); err == nil {
			b.pin = []string{taskset, "-c", "0"}
			b.serve = slices.Concat(b.pin, b.serve)
		} else {
			fmt.Fprintln(progress, "taskset is not installed: routers use all cores")
		}
		if err := b.startCost(ctx); err != nil {
			return err
		}
		results, err := b.memoryCase(ctx)
		if err != nil {
			return err
		}
		for _, c := range costCases {
			if len(o.Cases) > 0 && !slices.Contains(o.Cases, c.name) {
				continue
			}
			fmt.Fprintf(progress, "%s ...\n", c.name)
			some, err := b.costCase(ctx, c)
			if err != nil {
				return err
			}
			results = append(results, some...)
		}
		if o.JSON {
			return json.MarshalWrite(out, map[string]any{"results": results}, jsontext.Multiline(true), json.Deterministic(true))
		}
		return costTable(out, results)
	})
}

// startCost starts the upstream and every subject that this machine has; of the others it says why not.
func (b *costBench) startCost(ctx context.Context) error {
	var err error
	if b.options.Install {
		if err := b.install(ctx); err != nil {
			return err
		}
	}
	if b.upstream, err = b.role(ctx, "upstream"); err != nil {
		return err
	}
	b.subjects = append(b.subjects, &process{name: Direct, address: b.upstream.address})
	for _, name := range b.options.Subjects {
		p, err := b.startCosted(ctx, name)
		if err != nil {
			fmt.Fprintf(b.progress, "%s: left out: %v\n", name, err)
			continue
		}
		b.subjects = append(b.subjects, p)
	}
	return nil
}

// costCase takes interleaved samples of each subject; the first round opens connections and fills caches.
func (b *costBench) costCase(ctx context.Context, c costCase) ([]CostResult, error) {
	if c.streams > 0 {
		if err := b.setUpstream(ctx, 100, 20*time.Millisecond, false); err != nil {
			return nil, err
		}
	}
	all := make([][]costSample, len(b.subjects))
	for i := range b.options.Rounds + 1 {
		b.round = i
		for k := range b.subjects {
			s := k
			if i%2 == 1 {
				s = len(b.subjects) - 1 - k
			}
			one, err := b.costTurn(ctx, c, b.subjects[s])
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", c.name, b.subjects[s].name, err)
			}
			if i > 0 {
				all[s] = append(all[s], one)
			}
		}
	}
	var results []CostResult
	direct := summarizeCost(all[0])
	for s, p := range b.subjects[1:] {
		r := summarizeCost(all[s+1])
		r.Case, r.Subject, r.P50Added = c.name, p.name, round2(r.P50Added-direct.P50Added)
		if c.streams > 0 {
			r.P50Added = 0
		}
		results = append(results, r)
	}
	return results, nil
}

// summarizeCost takes the medians; P50Added is the whole latency.
func summarizeCost(samples []costSample) CostResult {
	r := CostResult{Samples: len(samples)}
	valid := slices.DeleteFunc(slices.Clone(samples), func(s costSample) bool { return s.void })
	r.Void = len(samples) - len(valid)
	if len(valid) == 0 {
		valid = samples
	}
	var cpu, p50 []float64
	for _, s := range valid {
		cpu, p50 = append(cpu, s.cpu), append(p50, s.p50)
		r.Resident = max(r.Resident, s.resident)
	}
	r.CPU, r.P50Added = median(cpu), median(p50)
	return r
}

// costTurn takes one sample.
func (b *costBench) costTurn(ctx context.Context, c costCase, p *process) (costSample, error) {
	watch, err := b.watch(p)
	if err != nil {
		return costSample{}, err
	}
	var units int
	if c.streams > 0 {
		units = c.streams * 100
		_, err = streams(ctx, p.address, c.streams, 20*time.Millisecond, uint64(b.round))
	} else {
		units = b.scaled(c.requests)
		_, err = unaryBodies(ctx, p.address, 4, units, newBodies(p.address, c, b.nextSeed()))
	}
	if err != nil {
		return costSample{}, err
	}
	one, err := watch.end(units)
	if err != nil || c.streams > 0 {
		return one, err
	}
	latencies, err := unaryBodies(ctx, p.address, 1, max(units/4, 4), newBodies(p.address, c, b.nextSeed()))
	one.p50 = measure.Micros(measure.Quantile(latencies, 0.5))
	if len(p.pids) > 0 {
		if one.resident, err = p.resident(); err != nil {
			return one, err
		}
	}
	return one, err
}

// nextSeed separates the bodies of one turn from all others.
func (b *costBench) nextSeed() int {
	b.seed += 1 << 16
	return b.seed
}

// costWatch is the use before a sample.
type costWatch struct {
	subject   *process
	upstreams []*process
	began     time.Time
	cpu       time.Duration
	ours      time.Duration
	machine   time.Duration
}

func (b *costBench) watch(p *process) (*costWatch, error) {
	w := &costWatch{subject: p, upstreams: b.upstreams(), began: time.Now()}
	var err error
	w.cpu, w.ours, w.machine, err = w.read()
	return w, err
}

// read returns the processor time so far of the subject, of the benchmark as a whole, and of the machine with steal.
func (w *costWatch) read() (subject, ours, machine time.Duration, err error) {
	if len(w.subject.pids) > 0 {
		if subject, err = w.subject.cpu(); err != nil {
			return 0, 0, 0, err
		}
	}
	ours = subject + measure.CPUTime()
	for _, u := range w.upstreams {
		used, err := u.cpu()
		if err != nil {
			return 0, 0, 0, err
		}
		ours += used
	}
	machine, err = machineTime()
	return subject, ours, machine, err
}

func (w *costWatch) end(units int) (costSample, error) {
	cpu, ours, machine, err := w.read()
	if err != nil {
		return costSample{}, err
	}
	wall := time.Since(w.began)
	others := (machine - w.machine) - (ours - w.ours)
	return costSample{cpu: measure.Micros(cpu-w.cpu) / float64(units), void: others.Seconds() > voidShare*wall.Seconds()*float64(runtime.NumCPU())}, nil
}

// machineTime is the time so far in which the cores of the machine were busy or stolen.
func machineTime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every architecture of Linux
	var total time.Duration
	for i, field := range fields[1:9] { // user nice system idle iowait irq softirq steal; guests are in user
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if i != 3 && i != 4 {
			total += time.Duration(n) * tick
		}
	}
	return total, nil
}
