package exposition_test

import (
	"bytes"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/kvpilot/kvpilot/server/observe/exposition"
)

// histogram is one in two registries, as the readers of one instrument are.
func histogram(t *testing.T) (classic, native *prometheus.Registry, observe func(label string, v float64)) {
	t.Helper()
	classic, native = prometheus.NewRegistry(), prometheus.NewRegistry()
	a := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "seconds", Help: "Some.", Buckets: []float64{1, 2, 4, math.Inf(1)}}, []string{"model"})
	b := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "seconds", Help: "Some.", NativeHistogramBucketFactor: 1.1}, []string{"model"})
	classic.MustRegister(a)
	native.MustRegister(b)
	return classic, native, func(label string, v float64) {
		a.WithLabelValues(label).Observe(v)
		b.WithLabelValues(label).Observe(v)
	}
}

func TestNativeBucketsJoinTheClassicOnesOfTheSameLabels(t *testing.T) {
	classic, native, observe := histogram(t)
	other := prometheus.NewCounter(prometheus.CounterOpts{Name: "others_total", Help: "Not a histogram."})
	classic.MustRegister(other)
	for _, v := range []float64{0, .5, 1.5, 3, 9} {
		observe("a", v)
	}
	observe("b", 100)
	for _, m := range gather(t, exposition.Native(classic, native), "seconds") {
		h := m.GetHistogram()
		want := map[string]uint64{"a": 5, "b": 1}[m.GetLabel()[0].GetValue()]
		if h.GetSampleCount() != want || nativeCount(h) != want {
			t.Errorf("%v: count %d, in native buckets %d, want %d", m.GetLabel(), h.GetSampleCount(), nativeCount(h), want)
		}
		if last := h.GetBucket()[len(h.GetBucket())-1]; len(h.GetBucket()) != 4 || !math.IsInf(last.GetUpperBound(), 1) || last.GetCumulativeCount() != want {
			t.Errorf("classic buckets %v, want three and one without a bound", h.GetBucket())
		}
	}
	if got := gather(t, exposition.Native(classic, native), "others_total"); len(got) != 1 {
		t.Errorf("the counter has %d series", len(got))
	}
}

// TestACountIsThatOfTheNativeBuckets: Prometheus refuses a scrape whose histograms disagree with themselves, and warns of a
// quantile whose buckets shrink towards the upper ones. Requests are served while metrics are read.
func TestACountIsThatOfTheNativeBuckets(t *testing.T) {
	classic, native, observe := histogram(t)
	observe("a", 1)
	shown := exposition.Native(classic, native)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					observe("a", float64(i%9))
				}
			}
		})
	}
	var before []*dto.Bucket
	for range 50 {
		h := gather(t, shown, "seconds")[0].GetHistogram()
		for i := 1; i < len(before); i++ {
			grew := func(i int) uint64 { return h.GetBucket()[i].GetCumulativeCount() - before[i].GetCumulativeCount() }
			if grew(i-1) > grew(i) {
				t.Errorf("the bucket up to %v grew by %d, that up to %v by %d only", before[i-1].GetUpperBound(), grew(i-1), before[i].GetUpperBound(), grew(i))
			}
		}
		before = h.GetBucket()
		if nativeCount(h) != h.GetSampleCount() {
			t.Errorf("%d observations in native buckets, and a count of %d", nativeCount(h), h.GetSampleCount())
		}
	}
	close(stop)
	wg.Wait()
}

func TestThePickersNames(t *testing.T) {
	r := prometheus.NewRegistry()
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kvpilot_router_requests_total", Help: "Requests."}, []string{"model", "route", "status", "reason"})
	requests.WithLabelValues("m", "chat", "200", "").Add(5)
	requests.WithLabelValues("m", "completions", "200", "").Add(2)
	requests.WithLabelValues("m", "chat", "503", "NO_REPLICA").Add(3)
	requests.WithLabelValues("m", "chat", "400", "").Add(1)
	ttft := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kvpilot_router_ttft_seconds", Help: "First tokens.", Buckets: []float64{1, 2}}, []string{"model", "route"})
	ttft.WithLabelValues("m", "chat").Observe(.5)
	ttft.WithLabelValues("m", "completions").Observe(1.5)
	ttft.WithLabelValues("m", "completions").Observe(5)
	replicas := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kvpilot_registry_replicas", Help: "Replicas."}, []string{"state"})
	replicas.WithLabelValues("ready").Set(3)
	replicas.WithLabelValues("down").Set(1)
	usage := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kvpilot_enginestats_kv_usage_ratio", Help: "Usage."}, []string{"replica"})
	usage.WithLabelValues("a").Set(.25)
	usage.WithLabelValues("b").Set(.75)
	engine := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kvpilot_enginestats_requests", Help: "Requests."}, []string{"replica", "state"})
	engine.WithLabelValues("a", "waiting").Set(4)
	engine.WithLabelValues("b", "waiting").Set(1)
	engine.WithLabelValues("a", "running").Set(6)
	engine.WithLabelValues("b", "running").Set(8)
	tokens := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "gen_ai_client_token_usage", Help: "Tokens.", Buckets: []float64{100}}, []string{"gen_ai_request_model", "gen_ai_token_type"})
	tokens.WithLabelValues("m", "input").Observe(50)
	r.MustRegister(requests, ttft, replicas, usage, engine, tokens)

	got := text(t, exposition.EPP(r, "llama"))
	for _, names := range [][2]string{{"inference_objective_", "inference_pool_"}, {"llm_d_router_epp_", "llm_d_router_epp_"}} {
		model := `model_name="m",target_model_name="m"`
		for _, want := range []string{
			names[0] + "request_total{" + model + "} 11",
			names[0] + `request_error_total{error_code="NO_REPLICA",` + model + "} 3",
			names[0] + `request_error_total{error_code="400",` + model + "} 1",
			names[0] + "request_ttft_seconds_bucket{" + model + `,le="1"} 1`,
			names[0] + "request_ttft_seconds_bucket{" + model + `,le="2"} 2`,
			names[0] + "request_ttft_seconds_count{" + model + "} 3",
			names[0] + "request_ttft_seconds_sum{" + model + "} 7",
			names[0] + "input_tokens_count{" + model + "} 1",
			names[1] + `average_kv_cache_utilization{name="llama"} 0.5`,
			names[1] + `average_queue_size{name="llama"} 2.5`,
		} {
			if !strings.Contains(got, "\n"+want+"\n") {
				t.Errorf("%s is missing", want)
			}
		}
	}
	for _, want := range []string{`inference_pool_ready_pods{name="llama"} 3`, `llm_d_router_epp_ready_endpoints{name="llama"} 3`, `llm_d_router_epp_average_running_requests{name="llama"} 7`} {
		if !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("%s is missing", want)
		}
	}
	if strings.Contains(got, "output_tokens") {
		t.Error("there are output tokens, and none were counted")
	}
	if again := text(t, exposition.EPP(r, "llama")); again != got {
		t.Errorf("read twice, the metrics differ:\n%s\n%s", got, again)
	}
	if t.Failed() {
		t.Log(got)
	}
}

func nativeCount(h *dto.Histogram) uint64 {
	n, bucket := h.GetZeroCount(), int64(0)
	for _, d := range h.GetPositiveDelta() {
		bucket += d
		n += uint64(bucket)
	}
	return n
}

func gather(t *testing.T, from prometheus.Gatherer, name string) []*dto.Metric {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()
		}
	}
	t.Fatalf("no metric %s", name)
	return nil
}

func text(t *testing.T, from prometheus.Gatherer) string {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}
