package tokenizer_test

import (
	"context"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/observe/recorder"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// A trace outside of the sample is kept when a tokenizer failed, and not when the client did.
func TestOnlyATokenizersFaultKeepsATrace(t *testing.T) {
	for name, c := range map[string]struct {
		faults enginesim.Faults
		leave  bool
		want   bool
	}{
		"a refused prompt":   {faults: enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 400, Body: `{"error":{"message":"no"}}`}}},
		"a failed tokenizer": {faults: enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 500}}, want: true},
		"a client that left": {leave: true},
		"an answer":          {},
	} {
		t.Run(name, func(t *testing.T) {
			kept := false
			rec := recorder.New(recorder.Params{Sampler: sdktrace.NeverSample(), To: recorder.KeepFunc(func(*recorder.Trace) { kept = true })})
			pool := startWith(t, tokenizer.DefaultConfig(), tokenizer.Params{Scope: scope.New(nil, nil, rec)})
			rep := serve(t, "a", &simulated{faults: c.faults})
			ctx, s := rec.Tracer("test").Start(t.Context(), "surface")
			ctx, leave := context.WithCancel(ctx)
			defer leave()
			if c.leave {
				leave()
			}
			_, _ = pool.Encode(ctx, request(read(t, `{"prompt":"x"}`), rep)) // what it returns is other tests' matter
			s.End()
			if kept != c.want {
				t.Errorf("kept: %v, want %v", kept, c.want)
			}
		})
	}
}
