package streambench

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// Result is one case for one subject. Fields that a case does not measure are absent.
type Result struct {
	Case    string `json:"case"`
	Subject string `json:"subject"`

	CPUPerUnit float64 `json:"cpu_us,omitempty"` // per chunk or request
	P50        float64 `json:"p50_us,omitempty"` // of chunks or requests
	P99        float64 `json:"p99_us,omitempty"` // of chunks or requests
	P99Lowest  float64 `json:"p99_us_lowest_round,omitempty"`
	P99Highest float64 `json:"p99_us_highest_round,omitempty"`
	PerSecond  float64 `json:"per_s,omitempty"` // requests
	Comparison

	AllocsPerChunk  *float64 `json:"allocs_per_chunk,omitempty"`
	RequestOverhead float64  `json:"request_overhead_us,omitempty"` // CPU beyond the reverse proxy's
	BytesPerIdle    int64    `json:"bytes_per_idle_stream,omitempty"`
	Leaks
}

// Comparison is a result against the reverse proxy's.
type Comparison struct {
	CPUVsReverse float64 `json:"cpu_vs_reverseproxy,omitempty"`
	P50VsReverse float64 `json:"p50_vs_reverseproxy,omitempty"`
	P99VsReverse float64 `json:"p99_vs_reverseproxy,omitempty"`
	// The addition to the latency without any proxy, where that was measured.
	P50Added          float64 `json:"p50_added_us,omitempty"`
	P99Added          float64 `json:"p99_added_us,omitempty"`
	P50AddedVsReverse float64 `json:"p50_added_vs_reverseproxy,omitempty"`
	P99AddedVsReverse float64 `json:"p99_added_vs_reverseproxy,omitempty"`
}

// Leaks are the remains of streams that their clients had left.
type Leaks struct {
	// Leaked adds up the goroutines, upstream connections and reservations.
	Leaked             *int `json:"leaked,omitempty"`
	LeakedGoroutines   *int `json:"leaked_goroutines,omitempty"`
	LeakedReservations *int `json:"leaked_reservations,omitempty"`
}

// round is one turn of one subject.
type round struct {
	units     int
	cpu       time.Duration
	mallocs   int64
	wall      time.Duration
	latencies []time.Duration
}

// compare takes the median of the CPU time that each round gave against the yardstick in the same round: a disturbance of seconds hits both.
// Latencies are compared over all rounds together: a
// hundredth of one round's chunks may be the effect of two or three stops of the machine.
func (r *Result) compare(ours, theirs []round, unary bool) {
	against := func(value func(round) float64, of func(a, b float64) float64) float64 {
		values := make([]float64, len(ours))
		for i := range ours {
			values[i] = of(value(ours[i]), value(theirs[i]))
		}
		return median(values)
	}
	r.CPUVsReverse = against(cpuPerUnit, ratio)
	a, b := pooled(ours), pooled(theirs)
	r.P50VsReverse = round2(ratio(float64(measure.Quantile(a, 0.5)), float64(measure.Quantile(b, 0.5))))
	r.P99VsReverse = round2(ratio(float64(measure.Quantile(a, 0.99)), float64(measure.Quantile(b, 0.99))))
	if unary {
		r.RequestOverhead = against(cpuPerUnit, func(a, b float64) float64 { return a - b })
	}
}

// pooled are the latencies of all rounds, sorted.
func pooled(rounds []round) []time.Duration {
	var all []time.Duration
	for _, one := range rounds {
		all = append(all, one.latencies...)
	}
	slices.Sort(all)
	return all
}

func p99(o round) float64 { return measure.Micros(measure.Quantile(o.latencies, 0.99)) }

func median(values []float64) float64 { return round2(measure.Median(values)) }

// summarize takes the median of the rounds' CPU times and rates, so that one disturbed round does not
// count, and the quantiles of all rounds' latencies.
func summarize(name, subject string, rounds []round) Result {
	r := Result{Case: name, Subject: subject}
	middle := func(value func(round) float64) float64 {
		values := make([]float64, len(rounds))
		for i, one := range rounds {
			values[i] = value(one)
		}
		return median(values)
	}
	r.CPUPerUnit = middle(cpuPerUnit)
	all := pooled(rounds)
	r.P50, r.P99 = round2(measure.Micros(measure.Quantile(all, 0.5))), round2(measure.Micros(measure.Quantile(all, 0.99)))
	if len(rounds) > 0 {
		tails := make([]float64, len(rounds))
		for i, one := range rounds {
			tails[i] = p99(one)
		}
		r.P99Lowest, r.P99Highest = round2(slices.Min(tails)), round2(slices.Max(tails))
	}
	r.PerSecond = middle(func(o round) float64 { return float64(o.units) / o.wall.Seconds() })
	return r
}

// ratio is 0, for unknown, when b is no measure of anything.
func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

func round2(v float64) float64 {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'f', 2, 64), 64) // it was just formatted
	return rounded
}

// addCompared adds each subject's result, compared with the yardstick's and with the result of no proxy where they
// took part.
func (b *bench) addCompared(name string, all [][]round, yardstick, direct int) {
	unary := strings.HasSuffix(name, "-request")
	results := make([]Result, len(b.subjects))
	for s, p := range b.subjects {
		results[s] = summarize(name, p.name, all[s])
	}
	for s := range results {
		r := &results[s]
		if yardstick >= 0 && s != yardstick {
			r.compare(all[s], all[yardstick], unary)
		}
		if direct >= 0 && s != direct {
			r.P50Added, r.P99Added = round2(r.P50-results[direct].P50), round2(r.P99-results[direct].P99)
		}
	}
	for s := range results {
		if r := &results[s]; yardstick >= 0 && direct >= 0 && s != yardstick && s != direct {
			r.P50AddedVsReverse = round2(ratio(r.P50Added, results[yardstick].P50Added))
			r.P99AddedVsReverse = round2(ratio(r.P99Added, results[yardstick].P99Added))
		}
		b.add(results[s])
	}
}
