package labels_test

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/kit/labels"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type key struct{ model, source string }

func TestMeasurementsKeepTheirLabels(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	counter, err := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test").Int64Counter("requests")
	if err != nil {
		t.Fatal(err)
	}
	var sets labels.Sets[key]
	built := 0
	for range 3 {
		for _, k := range []key{{"a", "x"}, {"a", "y"}, {"b", "x"}} {
			counter.Add(context.Background(), 1, sets.Of(k, func(k key) []attribute.KeyValue {
				built++
				return []attribute.KeyValue{attribute.String("source", k.source), attribute.String("model", k.model)}
			}))
		}
	}
	if built != 3 {
		t.Errorf("%d sets were made for 3 keys", built)
	}
	var got metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &got); err != nil {
		t.Fatal(err)
	}
	sum, ok := got.ScopeMetrics[0].Metrics[0].Data.(metricdata.Sum[int64])
	if !ok || len(sum.DataPoints) != 3 {
		t.Fatalf("data points %v, want one for each key", got.ScopeMetrics[0].Metrics[0].Data)
	}
	for _, p := range sum.DataPoints {
		model, _ := p.Attributes.Value("model")
		source, _ := p.Attributes.Value("source")
		if p.Value != 3 || model.AsString() == "" || source.AsString() == "" {
			t.Errorf("%v counted %d times, want 3", p.Attributes, p.Value)
		}
	}
}

func TestTooManyKeysAreMadeEachTime(t *testing.T) {
	var sets labels.Sets[int]
	built := 0
	for range 2 {
		for i := range 5000 {
			sets.Of(i, func(i int) []attribute.KeyValue { built++; return []attribute.KeyValue{attribute.Int("i", i)} })
		}
	}
	if built <= 5000 || built >= 10000 {
		t.Errorf("%d sets were made for 5000 keys asked for twice, want some kept and some not", built)
	}
}

func TestTheFirstNamesHaveLabels(t *testing.T) {
	names := labels.NewNames(3)
	for _, name := range []string{"a", "b", labels.Other, "a", "c", "b"} {
		if got := names.Of(name); got != name {
			t.Errorf("the label of %s is %s", name, got)
		}
	}
	for _, name := range []string{"d", "e", "d"} {
		if got := names.Of(name); got != labels.Other {
			t.Errorf("the label of %s is %s, want %s", name, got, labels.Other)
		}
	}
	if got := names.Of("c"); got != "c" {
		t.Errorf("a known name became %s", got)
	}
	if n := testing.AllocsPerRun(100, func() { names.Of("a"); names.Of("d") }); n != 0 {
		t.Errorf("a label costs %v allocations", n)
	}
}

func TestNamesAreBoundedForAllCallers(t *testing.T) {
	names := labels.NewNames(8)
	var own sync.Map
	var wg sync.WaitGroup
	for caller := range 4 {
		wg.Go(func() {
			for i := range 100 {
				if name := strconv.Itoa(caller*50 + i); names.Of(name) == name {
					own.Store(name, true)
				}
			}
		})
	}
	wg.Wait()
	n := 0
	own.Range(func(any, any) bool { n++; return true })
	if n == 0 || n > 8 {
		t.Errorf("%d names have labels, want 1 to 8", n)
	}
}
