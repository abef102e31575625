package telemetry

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/server/observe/recorder"
)

// startHTTPCollector serves OTLP over HTTP and keeps the last request and its header.
func startHTTPCollector(t *testing.T) (url string, got func() (*collectorpb.ExportTraceServiceRequest, http.Header)) {
	t.Helper()
	var mu sync.Mutex
	var last *collectorpb.ExportTraceServiceRequest
	var header http.Header
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		in := &collectorpb.ExportTraceServiceRequest{}
		if err == nil {
			err = proto.Unmarshal(body, in)
		}
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		last, header = in, r.Header
		mu.Unlock()
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(s.Close)
	return s.URL, func() (*collectorpb.ExportTraceServiceRequest, http.Header) {
		mu.Lock()
		defer mu.Unlock()
		return last, header
	}
}

func TestOpenTelemetrysVariablesChooseTheExporter(t *testing.T) {
	for name, c := range map[string]struct {
		env     map[string]string // %s is a collector that the settings do not name
		set     func(c *Config, url string)
		arrives bool
		about   map[string]string
		header  map[string]string
	}{
		"an endpoint": {
			env:     map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "%s", "OTEL_EXPORTER_OTLP_HEADERS": "x-team=a", "OTEL_SERVICE_NAME": "theirs", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=prod,service.version=other"},
			arrives: true,
			about:   map[string]string{"service.name": "theirs", "deployment.environment.name": "prod", "telemetry.sdk.language": "go", "service.instance.id": "me"},
			header:  map[string]string{"X-Team": "a"},
		},
		"an endpoint for traces": {
			env:     map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "%s/v1/traces", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
			arrives: true,
			about:   map[string]string{"service.name": "kvpilot", "service.version": "9"},
		},
		"no exporter":     {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "%s", "OTEL_TRACES_EXPORTER": "none"}},
		"the SDK is off":  {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "%s", "OTEL_SDK_DISABLED": "true"}},
		"nothing is said": {},
		"the settings count more": {
			env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none", "OTEL_SERVICE_NAME": "theirs", "OTEL_EXPORTER_OTLP_HEADERS": "x-team=a"},
			set: func(c *Config, url string) {
				c.ServiceName = "ours"
				c.Traces.Endpoint, c.Traces.Protocol = url+"/v1/traces", "http"
			},
			arrives: true,
			about:   map[string]string{"service.name": "ours"},
			header:  map[string]string{"X-Team": "a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			url, got := startHTTPCollector(t)
			var env []string
			for key, value := range c.env {
				if len(value) > 1 && value[:2] == "%s" {
					value = url + value[2:]
				}
				t.Setenv(key, value)
				env = append(env, key+"="+value)
			}
			config := DefaultConfig()
			config.Traces.Ratio = 1
			if c.set != nil {
				c.set(&config, url)
			}
			tel, err := New(t.Context(), config, Params{Version: "9", Instance: "me", Env: env})
			if err != nil {
				t.Fatal(err)
			}
			_, s := tel.Tracers().Tracer("t").Start(t.Context(), "root")
			s.End()
			if err := tel.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			in, header := got()
			if (in != nil) != c.arrives {
				t.Fatalf("the collector got %v", in)
			}
			if !c.arrives {
				return
			}
			about := map[string]string{}
			for _, a := range in.ResourceSpans[0].GetResource().GetAttributes() {
				about[a.GetKey()] = a.GetValue().GetStringValue()
			}
			for key, want := range c.about {
				if about[key] != want {
					t.Errorf("%s = %q, want %q", key, about[key], want)
				}
			}
			for key, want := range c.header {
				if header.Get(key) != want {
					t.Errorf("header %s = %q, want %q", key, header.Get(key), want)
				}
			}
			if in.ResourceSpans[0].GetSchemaUrl() != semconv.SchemaURL {
				t.Errorf("the schema is %q", in.ResourceSpans[0].GetSchemaUrl())
			}
		})
	}
}

func TestABadVariableOfOpenTelemetrysIsAnError(t *testing.T) {
	for name, c := range map[string]map[string]string{
		"exporter":  {"OTEL_TRACES_EXPORTER": "no-such"},
		"attribute": {"OTEL_RESOURCE_ATTRIBUTES": "without-a-value"},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range c {
				t.Setenv(key, value)
			}
			if _, err := New(t.Context(), DefaultConfig(), Params{Env: os.Environ()}); err == nil {
				t.Errorf("%v are taken", slices.Collect(maps.Keys(c)))
			}
		})
	}
}

func TestOpenTelemetrysLimitsHold(t *testing.T) {
	t.Setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1")
	url, got := startHTTPCollector(t)
	config := DefaultConfig()
	config.Traces.Ratio, config.Traces.Endpoint, config.Traces.Protocol = 1, url+"/v1/traces", "http"
	tel, err := New(t.Context(), config, Params{})
	if err != nil {
		t.Fatal(err)
	}
	_, s := tel.Tracers().Tracer("t").Start(t.Context(), "root")
	s.SetAttributes(attribute.Int("a", 1), attribute.Int("b", 2))
	s.End()
	if err := tel.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	in, _ := got()
	if s := in.GetResourceSpans()[0].GetScopeSpans()[0].GetSpans()[0]; len(s.GetAttributes()) != 1 || s.GetDroppedAttributesCount() != 1 {
		t.Errorf("%v", s)
	}
}

// hanging is an exporter that does not come back before it must.
type hanging struct {
	calls atomic.Int32
	spans atomic.Int32
}

func (h *hanging) ExportSpans(ctx context.Context, list []sdktrace.ReadOnlySpan) error {
	h.calls.Add(1)
	h.spans.Add(int32(len(list)))
	<-ctx.Done()
	return ctx.Err()
}

func (*hanging) Shutdown(context.Context) error { return nil }

func TestAHangingCollectorHoldsNoRequestUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{}
		config := DefaultConfig()
		config.Traces.Ratio = 1
		tel, err := New(t.Context(), config, Params{Exporters: []sdktrace.SpanExporter{h}})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		tracer, ok := tel.Tracers().Tracer("t").(*recorder.Tracer)
		if !ok {
			t.Fatalf("%T", tel.Tracers())
		}
		const traces = 40_000
		for range traces {
			_, s := tracer.Start(t.Context(), "root")
			s.(*recorder.Span).Leave(five{tracer}, false)
			s.End()
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("requests waited for %v", took)
		}
		time.Sleep(10 * time.Minute) // all exports have been given up
		families, err := tel.shown.text.Gather()
		if err != nil {
			t.Fatal(err)
		}
		dropped := 0.0
		for _, f := range families {
			if f.GetName() == "kvpilot_telemetry_spans_dropped_total" {
				dropped = f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		if want := 6.0 * traces; dropped != want || h.calls.Load() < 10 {
			t.Errorf("%v spans are counted as dropped, want %v; %d calls", dropped, want, h.calls.Load())
		}
		for range traces {
			_, s := tracer.Start(t.Context(), "root")
			s.End()
		}
		began = time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := tel.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 5*time.Second {
			t.Errorf("the flush took %v: %v", time.Since(began), err)
		}
		time.Sleep(10 * time.Minute) // what is under way ends by itself
	})
}

// five is a story of as many spans.
type five struct{ tracer *recorder.Tracer }

func (five) Free() {}

func (f five) Draw(on *recorder.Canvas) {
	for range 5 {
		on.Draw(f.tracer, recorder.Part{Name: "part", From: time.Now(), To: time.Now()}, attribute.String("k", "v"))
	}
}

func TestWhatIsKeptForItsFailureIsExportedAsSampled(t *testing.T) {
	b := &last{}
	config := DefaultConfig()
	config.Traces.Ratio = 1e-12
	tel, err := New(t.Context(), config, Params{Exporters: []sdktrace.SpanExporter{b}})
	if err != nil {
		t.Fatal(err)
	}
	_, s := tel.Tracers().Tracer("t").Start(t.Context(), "root")
	if s.SpanContext().IsSampled() {
		t.Error("it is announced as sampled")
	}
	s.SetStatus(codes.Error, "broken")
	s.End()
	if err := tel.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(b.list) != 1 || !b.list[0].SpanContext().IsSampled() || b.list[0].SpanContext().SpanID() != s.SpanContext().SpanID() {
		t.Errorf("exported: %v", b.list)
	}
}

// last is an exporter that keeps what it gets.
type last struct{ list []sdktrace.ReadOnlySpan }

func (l *last) ExportSpans(_ context.Context, list []sdktrace.ReadOnlySpan) error {
	l.list = append(l.list, list...)
	return errors.ErrUnsupported
}

func (*last) Shutdown(context.Context) error { return nil }
