package tokenizer_test

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// taught is a pool that trusts the turns of conversations, after some whole ones.
func taught(t *testing.T, r *simulated, params tokenizer.Params) (*tokenizer.Pool, *replica.Replica) {
	t.Helper()
	rep := serve(t, "a", r)
	pool := startWith(t, tokenizer.DefaultConfig(), params)
	for c := range 3 {
		k := &talker{dice: rand.New(rand.NewPCG(uint64(c), 17))}
		for range 12 {
			k.turn()
			encode(t, pool, k.body(), rep)
			pool.WaitIdle()
		}
	}
	return pool, rep
}

// apart plays a conversation of which the pool sees some turns only, because other routers have the others.
func apart(t *testing.T, pool *tokenizer.Pool, rep *replica.Replica, seed uint64, see func(body string, turns int)) {
	t.Helper()
	dice := rand.New(rand.NewPCG(seed, 19))
	k := &talker{dice: rand.New(rand.NewPCG(seed, 23))}
	since := 0
	for turn := range 16 {
		k.turn()
		since++
		if turn == 0 || dice.IntN(3) == 0 {
			see(k.body(), since)
			pool.WaitIdle()
			since = 0
		}
	}
}

// A prompt of which only an older beginning is known waits for all its ids; one that is a turn further is answered early.
func TestAnOlderBeginningIsCompletedFirst(t *testing.T) {
	r := &simulated{render: true}
	pool, rep := taught(t, r, tokenizer.Params{})
	pool.Patient()
	fresh := tokenizer.DefaultConfig()
	fresh.CacheBytes = 0
	oracle, truth := start(t, fresh), serve(t, "truth", &simulated{render: true})
	older, next, asked, all := 0, 0, int64(0), int64(0)
	for c := range 8 {
		apart(t, pool, rep, uint64(c), func(body string, turns int) {
			want := encode(t, oracle, body, truth).IDs
			before := r.encoded.Load()
			got := encode(t, pool, body, rep)
			switch {
			case !slices.Equal(got.IDs, want[:len(got.IDs)]):
				t.Fatalf("%d ids from %s are not the beginning", len(got.IDs), got.Source)
			case turns == 1 && got.Partial:
				next++
			case turns > 1 && (got.Partial || !got.Exact || len(got.IDs) != len(want)):
				t.Errorf("%d turns after the known one: %d of %d ids (exact %v)", turns, len(got.IDs), len(want), got.Exact)
			case turns > 1:
				older++
				asked, all = asked+r.encoded.Load()-before, all+int64(len(want))
			}
		})
	}
	if older < 10 || next < 5 {
		t.Errorf("%d prompts had an older beginning and were completed, %d with the turn before were answered early", older, next)
	}
	if asked > all*2/3 {
		t.Errorf("%d tokens were asked for, the prompts had %d: known beginnings were not used", asked, all)
	}
}

// older counts the waits for prompts with an older beginning, by outcome.
func older(t *testing.T, reader *metric.ManualReader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != "kvpilot.tokenizer.conversation.older" {
				continue
			}
			for _, point := range m.Data.(metricdata.Sum[int64]).DataPoints {
				outcome, _ := point.Attributes.Value("outcome")
				counts[outcome.AsString()] = point.Value
			}
		}
	}
	return counts
}

// A tokenizer that does not answer, or fails, leaves the older beginning; so does the end of the time for ids. Where the turn before is
// still being completed, a prompt does not wait.
func TestAnOlderBeginningIsEnoughWhenTokenizersAreNot(t *testing.T) {
	for name, tc := range map[string]struct {
		faults  enginesim.Faults
		timeout time.Duration
		patient bool
		begun   bool // the turn before came to this router, and hangs
		want    map[string]int64
	}{
		"no answer":                {faults: enginesim.Faults{ConnectionFaults: enginesim.ConnectionFaults{Hang: true}}, want: map[string]int64{"whole": 0, "late": 1, "failed": 0}},
		"errors":                   {faults: enginesim.Faults{AnswerFaults: enginesim.AnswerFaults{Status: 500}}, patient: true, want: map[string]int64{"whole": 0, "late": 0, "failed": 1}},
		"no time":                  {faults: enginesim.Faults{ConnectionFaults: enginesim.ConnectionFaults{Hang: true}}, timeout: time.Millisecond, patient: true, want: map[string]int64{"whole": 0, "late": 0, "failed": 1}},
		"the turn before hangs":    {faults: enginesim.Faults{ConnectionFaults: enginesim.ConnectionFaults{Hang: true}}, begun: true, want: map[string]int64{"whole": 0, "late": 0, "failed": 0}},
		"nothing is wrong with it": {patient: true, want: map[string]int64{"whole": 1, "late": 0, "failed": 0}},
	} {
		t.Run(name, func(t *testing.T) {
			reader := metric.NewManualReader()
			r := &simulated{render: true}
			pool, rep := taught(t, r, tokenizer.Params{Scope: scope.Measured(metric.NewMeterProvider(metric.WithReader(reader)))})
			if tc.patient {
				pool.Patient()
			}
			k := &talker{dice: rand.New(rand.NewPCG(1, 29))}
			for range 3 {
				k.turn()
				encode(t, pool, k.body(), rep)
				pool.WaitIdle()
			}
			r.SetFaults(tc.faults)
			for range 3 {
				k.turn()
				if tc.begun {
					encode(t, pool, k.body(), rep)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(tc.timeout, time.Minute))
			defer cancel()
			enc, err := pool.Encode(ctx, request(read(t, k.body()), rep))
			if err != nil || enc.Source != tokenizer.SourceConversation || enc.Partial != (tc.want["whole"] == 0) || len(enc.IDs) == 0 {
				t.Errorf("%d ids from %s (%q), partial %v, %v; want the older beginning", len(enc.IDs), enc.Source, enc.Reason, enc.Partial, err)
			}
			if got := older(t, reader); !maps.Equal(got, tc.want) {
				t.Errorf("waits for older beginnings: %v, want %v", got, tc.want)
			}
		})
	}
}
