package telemetry

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"go.opentelemetry.io/otel/metric"
)

// scrape returns a family as a scraper gets it that accepts this.
func scrape(t *testing.T, tel *Telemetry, accept, name string) *dto.MetricFamily {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	tel.MetricsHandler().ServeHTTP(w, r)
	from := expfmt.NewDecoder(w.Body, expfmt.ResponseFormat(w.Header()))
	for {
		var f dto.MetricFamily
		if err := from.Decode(&f); err == io.EOF {
			return nil
		} else if err != nil {
			t.Fatal(err)
		}
		if f.GetName() == name {
			return &f
		}
	}
}

const (
	asProtobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
	asText     = "text/plain"
)

// TestNativeHistogramsAreServedWhereTheyAreSet also shows that the boundaries that a part asks for stay those of the classic buckets.
func TestNativeHistogramsAreServedWhereTheyAreSet(t *testing.T) {
	for _, on := range []bool{false, true} {
		c := DefaultConfig()
		c.Metrics.NativeHistograms = on
		tel, err := New(t.Context(), c, Params{})
		if err != nil {
			t.Fatal(err)
		}
		defer tel.Close(t.Context())
		took, err := tel.Meters().Meter("t").Float64Histogram("kvpilot.t.took", metric.WithUnit("s"), metric.WithDescription("Time."), metric.WithExplicitBucketBoundaries(1, 2))
		if err != nil {
			t.Fatal(err)
		}
		n, err := tel.Meters().Meter("t").Int64Counter("kvpilot.t.n", metric.WithDescription("Number."))
		if err != nil {
			t.Fatal(err)
		}
		n.Add(t.Context(), 3)
		for _, v := range []float64{.001, .5, 1.5, 1.6, 100} {
			took.Record(t.Context(), v)
		}
		for _, accept := range []string{asProtobuf, asText} {
			f := scrape(t, tel, accept, "kvpilot_t_took_seconds")
			if f == nil {
				t.Fatalf("%s: no histogram", accept)
			}
			h := f.GetMetric()[0].GetHistogram()
			if h.GetSampleCount() != 5 || h.GetBucket()[0].GetCumulativeCount() != 2 || h.GetBucket()[1].GetCumulativeCount() != 4 {
				t.Errorf("native %v, %s: classic %v", on, accept, h)
			}
			if got, want := len(h.GetPositiveSpan()) > 0, on && accept == asProtobuf; got != want {
				t.Errorf("native %v, %s: native buckets are served: %v", on, accept, got)
			}
			if f := scrape(t, tel, accept, "kvpilot_t_n_total"); f == nil || f.GetMetric()[0].GetCounter().GetValue() != 3 {
				t.Errorf("native %v, %s: the counter is %v", on, accept, f)
			}
		}
	}
}

func TestThePickersNamesAreServedWhereAPoolIsSet(t *testing.T) {
	for _, pool := range []string{"", "llama"} {
		c := DefaultConfig()
		c.Metrics.EPPPool = pool
		tel, err := New(t.Context(), c, Params{})
		if err != nil {
			t.Fatal(err)
		}
		defer tel.Close(t.Context())
		replicas, err := tel.Meters().Meter("t").Int64Gauge("kvpilot.registry.replicas", metric.WithDescription("Replicas."))
		if err != nil {
			t.Fatal(err)
		}
		replicas.Record(t.Context(), 2)
		if f := scrape(t, tel, asText, "inference_pool_ready_pods"); f != nil {
			t.Errorf("pool %q: replicas in no state are ready: %v", pool, f)
		}
		w := httptest.NewRecorder()
		tel.MetricsHandler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		if !strings.Contains(w.Body.String(), "kvpilot_registry_replicas") {
			t.Errorf("pool %q: kvpilot's own name is missing", pool)
		}
	}
}

func BenchmarkRecord(b *testing.B) {
	for name, on := range map[string]bool{"classic": false, "with native": true} {
		b.Run(name, func(b *testing.B) {
			c := DefaultConfig()
			c.Metrics.NativeHistograms = on
			tel, err := New(b.Context(), c, Params{})
			if err != nil {
				b.Fatal(err)
			}
			defer tel.Close(b.Context())
			took, err := tel.Meters().Meter("t").Float64Histogram("kvpilot.t.took", metric.WithExplicitBucketBoundaries(.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60))
			if err != nil {
				b.Fatal(err)
			}
			ctx := b.Context()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				took.Record(ctx, float64(i%1000)/100)
			}
		})
	}
}
