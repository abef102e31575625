package instruments_test

import (
	"context"
	"slices"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// place is a key with labels of its own.
type place struct{ room, shelf string }

func (p place) Labels() []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("room", p.room), attribute.String("shelf", p.shelf)}
}

type things struct {
	Plain   metric.Int64Counter             `metric:"kvpilot.x.plain" unit:"{thing}" help:"Things."`
	Unknown metric.Int64Counter             `metric:"kvpilot.x.unknown" unit:"{thing}" by:"name" help:"Things, by name."`
	Open    metric.Int64UpDownCounter       `metric:"kvpilot.x.open" unit:"{thing}" help:"Open things."`
	Wait    metric.Float64Histogram         `metric:"kvpilot.x.wait" unit:"s" bounds:"1e-3 2.5 10" help:"Time that things wait."`
	Size    metric.Int64Histogram           `metric:"kvpilot.x.size" unit:"By" bounds:"1 8" help:"Sizes of things."`
	Words   instruments.Keyed[string]       `metric:"kvpilot.x.words" unit:"{thing}" by:"kind" values:"a b" help:"Things, by kind."`
	Places  instruments.Keyed[place]        `metric:"kvpilot.x.places" unit:"{thing}" by:"room shelf" help:"Things, by place."`
	Now     metric.Int64ObservableGauge     `metric:"kvpilot.x.now" unit:"{thing}" help:"Things now."`
	Share   metric.Float64ObservableGauge   `metric:"kvpilot.x.share" unit:"1" help:"Share."`
	All     metric.Int64ObservableCounter   `metric:"kvpilot.x.all" unit:"{thing}" help:"All things."`
	Spent   metric.Float64ObservableCounter `metric:"kvpilot.x.spent" unit:"s" help:"Time of all things."`
	inner

	unrelated int
}

// inner is a part of a struct of instruments.
type inner struct {
	Total instruments.Total `metric:"kvpilot.x.total" unit:"{thing}" help:"Things in total, also the \"other\" ones."`
}

func collect(t *testing.T, reader *sdk.ManualReader) map[string]metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]metricdata.Metrics{}
	for _, scope := range all.ScopeMetrics {
		if scope.Scope.Name != "github.com/kvpilot/kvpilot/server/x" {
			t.Errorf("scope %q", scope.Scope.Name)
		}
		for _, m := range scope.Metrics {
			got[m.Name] = m
		}
	}
	return got
}

// points counts the series of a metric, and adds its values up.
func points(m metricdata.Metrics) (series int, sum float64) {
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			sum += float64(p.Value)
		}
		return len(data.DataPoints), sum
	case metricdata.Sum[float64]:
		for _, p := range data.DataPoints {
			sum += p.Value
		}
		return len(data.DataPoints), sum
	case metricdata.Gauge[int64]:
		return len(data.DataPoints), float64(data.DataPoints[0].Value)
	case metricdata.Gauge[float64]:
		return len(data.DataPoints), data.DataPoints[0].Value
	case metricdata.Histogram[float64]:
		return len(data.DataPoints), data.DataPoints[0].Sum
	case metricdata.Histogram[int64]:
		return len(data.DataPoints), float64(data.DataPoints[0].Sum)
	}
	return 0, 0
}

func TestFieldsBecomeTheInstrumentsThatTheirTagsDeclare(t *testing.T) {
	reader := sdk.NewManualReader()
	m := &things{unrelated: 1}
	s := instruments.Declare(sdk.NewMeterProvider(sdk.WithReader(reader)), "server/x", m)
	m.Places.Know(place{"cellar", "1"})
	m.Places.Expect(place{"cellar", "2"}, place{"attic", "1"})
	m.Places.Add(place{"attic", "1"})
	m.Places.Add(place{"a room", "that nobody knows"})
	m.Words.Count("b", 5)
	m.Wait.Record(context.Background(), 1)
	m.Size.Record(context.Background(), 3)
	m.Total.Add(4)
	s.Observe(func(o metric.Observer) {
		o.ObserveInt64(m.Now, 3)
		o.ObserveFloat64(m.Share, 0.5, instruments.Rank("r", 1))
		o.ObserveInt64(m.All, 7)
		o.ObserveFloat64(m.Spent, 1.5)
	})
	if m.unrelated != 1 {
		t.Error("a field without tags was changed")
	}
	got := collect(t, reader)
	for name, want := range map[string]struct {
		series int
		sum    float64
		unit   string
		help   string
	}{
		"kvpilot.x.plain":  {1, 0, "{thing}", "Things."},
		"kvpilot.x.open":   {1, 0, "{thing}", "Open things."},
		"kvpilot.x.wait":   {1, 1, "s", "Time that things wait."},
		"kvpilot.x.size":   {1, 3, "By", "Sizes of things."},
		"kvpilot.x.words":  {2, 5, "{thing}", "Things, by kind."},
		"kvpilot.x.places": {2, 1, "{thing}", "Things, by place."},
		"kvpilot.x.now":    {1, 3, "{thing}", "Things now."},
		"kvpilot.x.share":  {1, 0.5, "1", "Share."},
		"kvpilot.x.all":    {1, 7, "{thing}", "All things."},
		"kvpilot.x.spent":  {1, 1.5, "s", "Time of all things."},
		"kvpilot.x.total":  {1, 4, "{thing}", "Things in total, also the \"other\" ones."},
	} {
		series, sum := points(got[name])
		if series != want.series || sum != want.sum || got[name].Unit != want.unit || got[name].Description != want.help {
			t.Errorf("%s is %d series of %v (%s, %q), want %v", name, series, sum, got[name].Unit, got[name].Description, want)
		}
	}
	if series, _ := points(got["kvpilot.x.unknown"]); series != 0 {
		t.Error("a counter whose labels are not known has a series")
	}
	if bounds := got["kvpilot.x.wait"].Data.(metricdata.Histogram[float64]).DataPoints[0].Bounds; !slices.Equal(bounds, []float64{1e-3, 2.5, 10}) {
		t.Errorf("the bounds are %v", bounds)
	}
	label := got["kvpilot.x.words"].Data.(metricdata.Sum[int64]).DataPoints[0].Attributes
	if _, ok := label.Value("kind"); !ok {
		t.Errorf("the label of words is %v", label.ToSlice())
	}
}

// Parts without a provider, and instruments that nothing declared, count into the void.
func TestNothingIsMeasuredWithoutAProvider(t *testing.T) {
	m := &things{}
	instruments.Declare(nil, "server/x", m)
	m.Plain.Add(context.Background(), 1)
	m.Words.Add("a")
	var none instruments.Keyed[string]
	none.Add("a")
	if none.Label("a") == nil {
		t.Error("no label")
	}
}

// catalog is a provider that remembers the declarations.
type catalog struct {
	noop.MeterProvider
	names []string
}

func (c *catalog) Declared(d instruments.Instrument) { c.names = append(c.names, d.Kind+" "+d.Name) }

func TestACatalogGetsEachDeclaration(t *testing.T) {
	c := &catalog{}
	instruments.Declare(c, "server/x", &things{})
	want := []string{
		"counter kvpilot.x.plain", "counter kvpilot.x.unknown", "gauge kvpilot.x.open", "histogram kvpilot.x.wait", "histogram kvpilot.x.size", "counter kvpilot.x.words",
		"counter kvpilot.x.places", "gauge kvpilot.x.now", "gauge kvpilot.x.share", "counter kvpilot.x.all", "counter kvpilot.x.spent", "counter kvpilot.x.total",
	}
	if !slices.Equal(c.names, want) {
		t.Errorf("declared %q", c.names)
	}
}

func TestAWrongDeclarationIsABug(t *testing.T) {
	for name, wrong := range map[string]any{
		"a name": &struct {
			A metric.Int64Counter `metric:"1 bad name"`
		}{},
		"a type": &struct {
			A int `metric:"kvpilot.x.int"`
		}{},
		"a bound": &struct {
			A metric.Float64Histogram `metric:"kvpilot.x.wait" bounds:"much"`
		}{},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			instruments.Declare(sdk.NewMeterProvider(), "server/x", wrong)
		}()
	}
}

// A counter by keys is on the way of every request.
func BenchmarkKeyed(b *testing.B) {
	var m things
	instruments.Declare(nil, "server/x", &m)
	b.ReportAllocs()
	for b.Loop() {
		m.Words.Add("b")
	}
}
