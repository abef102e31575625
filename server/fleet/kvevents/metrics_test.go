package kvevents_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// read collects all series as "name{attributes}".
func read(t *testing.T, reader *sdk.ManualReader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	series := map[string]float64{}
	note := func(name string, set attribute.Set, value float64) {
		series[strings.TrimPrefix(name, "kvpilot.kvevents.")+"{"+set.Encoded(attribute.DefaultEncoder())+"}"] = value
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, float64(p.Count))
				}
			}
		}
	}
	return series
}

func TestMetrics(t *testing.T) {
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	sink := newSink()
	p := kvevents.New(quick(), kvevents.Params{Sink: sink, Scope: scope.Measured(provider)})
	before := read(t, reader)
	for _, name := range []string{
		"batches{}", "connects{}", "gaps{}", "decode.errors{}", "malformed{}", "pauses{}", "events{kind=stored}", "events{kind=removed}",
		"events{kind=cleared}", "blocks{op=stored}", "blocks{op=removed}", "replays{why=first}", "replay.failures{why=gap}", "resets{reason=gap}",
		"resets{reason=restart}", "unknown{what=field}", "unknown{what=tag}", "unknown{what=misfit}",
		"feeds{state=cold}", "feeds{state=exact}", "feeds{state=degraded}", "feeds{state=none}", "queue.bytes{}", "queue.batches{}",
	} {
		if value, ok := before[name]; !ok || value != 0 {
			t.Errorf("%s = %v, %v before anything happened, want a zero", name, value, ok)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { p.Run(ctx) })
	e := startEngine(t, zmtp.PublisherParams{})
	p.Add(slot, e.events(), "a/0")
	p.Add(slot+1, replica.Events{}, "b/0")
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
	expect(t, p, sink, slot, e, kvblock.FeedExact) // the first replay is over
	e.publish(8, 3)
	e.pub.Lose(e.change(2, 0))
	e.publish(1, 0)
	e.clear()
	eventually(t, "everything is read", func() bool { s, _ := p.Status(slot); return s.Next == 4 })
	expect(t, p, sink, slot, e, kvblock.FeedExact)
	after := read(t, reader)
	for name, want := range map[string]float64{
		"batches{}": 4, "lag{}": 4, "gaps{}": 1, "blocks{op=stored}": 11, "blocks{op=removed}": 3, "events{kind=cleared}": 1, "replays{why=gap}": 1,
		"feeds{state=exact}": 1, "feeds{state=none}": 1, "feed.state{rank=a/0,state=exact}": 1, "feed.state{rank=b/0,state=none}": 1,
	} {
		if after[name] != want {
			t.Errorf("%s = %v, want %v", name, after[name], want)
		}
	}
	cancel()
	run.Wait()
}

func TestConfig(t *testing.T) {
	if err := kvevents.DefaultConfig().Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	err := kvevents.Config{Workers: -1, Probe: -1, Heartbeat: -1, ForgetAfter: -1}.Validate()
	for _, field := range []string{"workers", "queue_bytes", "max_message_bytes", "heartbeat", "probe", "replay_timeout", "forget_after", "reconnect_max"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("Validate() = %v, does not name %s", err, field)
		}
	}
}
