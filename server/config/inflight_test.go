package config_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"testing"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/memlimit"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// tokenized answers every question of a tokenizer with the same ids.
type tokenized []byte

func (t tokenized) Do(context.Context, upstream.Target, *upstream.Request) (*upstream.Response, error) {
	resp := &upstream.Response{Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(t))}
	resp.Restore(t)
	return resp, nil
}

// With the default settings, long prompts in flight are all known by their blocks, and fit the memory that there is.
func TestLongPromptsInFlightFitTheMemory(t *testing.T) {
	const tokens = 142_000
	ids := make([]uint32, tokens)
	for i := range ids {
		ids[i] = uint32(i % 100_000)
	}
	sender := tokenized(append(rawjson.AppendUint32s(fmt.Appendf(nil, `{"count":%d,"max_model_len":1000000,"tokens":`, tokens), ids), '}'))
	for _, tt := range []struct{ requests, memory int }{{1000, 4 << 30}, {250, 1 << 30}} {
		if underRace { // a tenth shows the same of the code
			tt.requests /= 10
		}
		t.Run(fmt.Sprint(tt.requests), func(t *testing.T) {
			c, _ := config.Default().WithinMemory(memlimit.Limit{Bytes: int64(tt.memory)})
			reader := metric.NewManualReader()
			pool := tokenizer.New(c.Tokenizer, tokenizer.Params{Sender: sender, Scope: scope.Measured(metric.NewMeterProvider(metric.WithReader(reader)))})
			replicas := []*replica.Replica{{ID: "a", URL: "http://a", State: replica.StateReady, Version: "0.17.0", BlockSize: 16, Models: []replica.Model{{ID: "m"}}}}
			before := heap()
			flight := make([]*tokenizer.Encoding, tt.requests)
			for i := range flight {
				body := fmt.Appendf(nil, `{"prompt":"%d"}`, i)
				enc, err := pool.Encode(t.Context(), tokenizer.Request{
					Prompt: &prompt.Prompt{Kind: prompt.KindText, API: prompt.APICompletions, Model: "m", Text: fmt.Sprint(i), Body: body}, Replicas: replicas, Pool: "m",
				})
				if err != nil || enc.Reason != "" || len(enc.Hashes(16, blockhash.Namespace{})) != tokens/16 {
					t.Fatalf("prompt %d has %d known ids (%s), %v", i, enc.Known(), enc.Reason, err)
				}
				flight[i] = enc
			}
			held := gauge(t, reader, "kvpilot.tokenizer.held")
			if held < int64(tt.requests)*tokens/2 || held > int64(c.Tokenizer.HeldBytes)/3 {
				t.Errorf("%d bytes are held, half a byte for each token is expected, in %d", held, c.Tokenizer.HeldBytes)
			}
			if grown := heap() - before; grown > held+int64(c.Tokenizer.CacheBytes)/8*9+16<<20 {
				t.Errorf("the heap has grown by %d bytes, %d are held and %d may be cached", grown, held, c.Tokenizer.CacheBytes)
			}
			for _, enc := range flight {
				enc.Release()
			}
			if held := gauge(t, reader, "kvpilot.tokenizer.held"); held != 0 {
				t.Errorf("%d bytes are held after all requests have ended", held)
			}
		})
	}
}

// heap is the live memory.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func gauge(t *testing.T, reader metric.Reader, name string) int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if data, ok := m.Data.(metricdata.Gauge[int64]); ok && m.Name == name && len(data.DataPoints) == 1 {
				return data.DataPoints[0].Value
			}
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}
