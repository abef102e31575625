package refusals_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/peers/refusals"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEachSourceHasOneLinePerMinuteAndEachRefusalCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		reader := sdk.NewManualReader()
		l := refusals.New(scope.New(slog.New(slog.NewTextHandler(&text, nil)), sdk.NewMeterProvider(sdk.WithReader(reader)), nil))
		lines := func() int { return strings.Count(text.String(), "\n") }
		for range 5 {
			l.Refuse(refusals.Key, "10.0.0.1", "a sender has another key")
		}
		l.Refuse(refusals.Key, "10.0.0.2", "a sender has another key")
		l.Refuse(refusals.Wire, "10.0.0.1", "another version")
		if lines() != 3 {
			t.Errorf("%d lines, want 3:\n%s", lines(), text.String())
		}
		time.Sleep(time.Minute)
		l.Refuse(refusals.Key, "10.0.0.1", "a sender has another key")
		if lines() != 4 {
			t.Errorf("%d lines after a minute, want 4", lines())
		}
		for i := range 3000 {
			l.Refuse(refusals.Malformed, fmt.Sprint(i), "noise")
		}
		if lines() > 4+1024 {
			t.Errorf("%d lines for 3000 sources, want at most 1028", lines())
		}
		var all metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		counts := map[string]int64{}
		for _, p := range all.ScopeMetrics[0].Metrics[0].Data.(metricdata.Sum[int64]).DataPoints {
			reason, _ := p.Attributes.Value("reason")
			counts[reason.AsString()] = p.Value
		}
		if len(counts) != len(refusals.Reasons()) || counts["key"] != 7 || counts["wire"] != 1 || counts["malformed"] != 3000 {
			t.Errorf("counts %v", counts)
		}
	})
}
