package history_test

import (
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/observe/history"
)

func TestHistoryCountsBySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := history.New()
		for range 99 {
			h.Served(false)
			h.Outcome(decision.Outcome{TTFT: 10 * time.Millisecond, PromptTokens: 100, CachedTokens: 60})
		}
		h.Served(true)
		h.Outcome(decision.Outcome{TTFT: 5 * time.Second, PromptTokens: 100, CachedTokens: -1, End: decision.EndFailed})
		h.Decision(&decision.Decision{Shadow: &decision.Shadow{Agrees: true, Regret: .2}})
		h.Decision(&decision.Decision{Shadow: &decision.Shadow{Regret: .4}})
		h.Decision(&decision.Decision{})
		for range 3 {
			h.Unserved("no_replica")
		}
		h.Unserved("rate_limit_exceeded")
		time.Sleep(2 * time.Second)
		h.Served(false)
		h.Outcome(decision.Outcome{})
		got := h.Since(time.Time{}, false)
		if len(got) != 2 {
			t.Fatalf("%d seconds, want 2", len(got))
		}
		s := got[0]
		if s.Requests != 100 || s.Failed != 1 || s.PromptTokens != 9900 || s.CachedTokens != 5940 {
			t.Errorf("counted %+v", s)
		}
		if s.Unserved["no_replica"] != 3 || s.Unserved["rate_limit_exceeded"] != 1 || s.Seconds != 1 {
			t.Errorf("unserved were %v in %d s", s.Unserved, s.Seconds)
		}
		if list := h.Since(time.Unix(s.T+1, 0), false); len(list) != 1 || list[0].T <= s.T {
			t.Errorf("since the second one: %+v", list)
		}
		if s.P50 < 9.5 || s.P50 > 10.5 || s.P99 < 9.5 || s.P99 > 10.5 {
			t.Errorf("p50 %v, p99 %v; want 10 ms within five percent", s.P50, s.P99)
		}
		if m := h.Minute(); m.Requests != 101-1 || m.Seconds != 2 || m.P50 < 9.5 || m.P50 > 10.5 {
			t.Errorf("the minute is %+v", m)
		}
		if m := h.Minute(); m.Unserved["no_replica"] != 3 || m.Unserved["rate_limit_exceeded"] != 1 {
			t.Errorf("unserved in the minute: %v", m.Unserved)
		}
		if s.Agreed != .5 || s.Regret < 299 || s.Regret > 301 {
			t.Errorf("shadow agreed %v, regret %v ms; want 0.5 and 300", s.Agreed, s.Regret)
		}
		time.Sleep(301 * time.Second)
		if got := h.Since(time.Time{}, false); len(got) != 0 {
			t.Errorf("%d seconds are left after five minutes", len(got))
		}
		if m := h.Minute(); m.Requests != 0 || m.Seconds != 60 || m.P50 != 0 {
			t.Errorf("the empty minute is %+v", m)
		}
		hour := h.Since(time.Time{}, true)
		if len(hour) != 1 || hour[0].Requests != 101 || hour[0].T%15 != 0 || hour[0].Seconds != 15 || hour[0].P50 < 9.5 || hour[0].P50 > 10.5 {
			t.Errorf("the hour has %+v", hour)
		}
		time.Sleep(time.Hour)
		if hour := h.Since(time.Time{}, true); len(hour) != 0 {
			t.Errorf("%d steps are left after an hour", len(hour))
		}
	})
}

// Requests, attempts and hand-overs are numbers of their own: what is tried again or goes to another decider has not failed.
func TestRequestsAttemptsAndHandOversAreApart(t *testing.T) {
	type outcomes = []decision.Outcome
	own := func(ends ...decision.End) (list outcomes) {
		for _, e := range ends {
			list = append(list, decision.Outcome{End: e})
		}
		return list
	}
	external := func(ends ...decision.End) outcomes {
		list := own(ends...)
		for i := range list {
			list[i].External = true
		}
		return list
	}
	type counts struct{ requests, failed, attempts, retries, handOvers, continued int }
	for name, tc := range map[string]struct {
		of   outcomes
		do   func(*history.History)
		want counts
	}{
		"a booking goes to another decider": {of: own(decision.EndHandedOver), want: counts{handOvers: 1}},
		"a peer's booking goes to another decider": {
			of: outcomes{{End: decision.EndHandedOver, AskedBy: "b"}}, want: counts{handOvers: 1},
		},
		"a peer's request fails": {of: outcomes{{End: decision.EndFailed, AskedBy: "b"}}},
		"a retry saves the request": {
			of: own(decision.EndMoved, decision.EndFailed, decision.EndCompleted),
			do: func(h *history.History) { h.Retried(); h.Retried(); h.Served(false) }, want: counts{requests: 1, attempts: 3, retries: 2},
		},
		"no attempt saves it": {
			of: own(decision.EndMoved, decision.EndMoved),
			do: func(h *history.History) { h.Retried(); h.Served(true) }, want: counts{requests: 1, failed: 1, attempts: 2, retries: 1},
		},
		"an external caller tries twice": {of: external(decision.EndMoved, decision.EndCompleted), want: counts{requests: 1, attempts: 2, retries: 1}},
		"an external caller gives up":    {of: external(decision.EndResumed, decision.EndFailed), want: counts{requests: 1, failed: 1, attempts: 2, retries: 1, continued: 1}},
		"a stream continues twice": {
			of: own(decision.EndResumed, decision.EndResumed, decision.EndCompleted),
			do: func(h *history.History) { h.Retried(); h.Retried(); h.Served(false) }, want: counts{requests: 1, attempts: 3, retries: 2, continued: 2},
		},
		"a stream stops two replicas": {of: external(decision.EndResumed, decision.EndPoisoned), want: counts{requests: 1, failed: 1, attempts: 2, retries: 1, continued: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := history.New()
				for _, o := range tc.of {
					h.Outcome(o)
				}
				if tc.do != nil {
					tc.do(h)
				}
				time.Sleep(time.Second)
				s := h.Minute()
				if got := (counts{s.Requests, s.Failed, s.Attempts, s.Retries, s.HandOvers, s.Continued}); got != tc.want {
					t.Errorf("counted %+v, want %+v", got, tc.want)
				}
			})
		})
	}
}

func TestHistoryCountsWaitsAndTheTimeOfTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := history.New()
		h.Decision(&decision.Decision{Timing: decision.Timing{Held: 40 * time.Millisecond}})
		h.Decision(&decision.Decision{Timing: decision.Timing{Held: 250 * time.Millisecond}})
		h.Decision(&decision.Decision{Timing: decision.Timing{Held: time.Hour}, DryRun: true})
		h.Outcome(decision.Outcome{TTFT: 100 * time.Millisecond, Duration: 2100 * time.Millisecond, OutputTokens: 101, CachedTokens: -1})
		h.Outcome(decision.Outcome{TTFT: 100 * time.Millisecond, Duration: time.Second, OutputTokens: 1, CachedTokens: -1})                        // has no further token
		h.Outcome(decision.Outcome{TTFT: 100 * time.Millisecond, Duration: time.Hour, OutputTokens: 9, CachedTokens: -1, End: decision.EndFailed}) // did not end by itself
		time.Sleep(time.Second)
		for what, s := range map[string]history.Step{"second": h.Since(time.Time{}, false)[0], "step": h.Since(time.Time{}, true)[0], "minute": h.Minute()} {
			if s.Held != 2 || s.HeldMost != 250*time.Millisecond {
				t.Errorf("%s: %d held, at most %v; want 2, 250 ms", what, s.Held, s.HeldMost)
			}
			if s.TPOT50 < 19 || s.TPOT50 > 21 || s.TPOT99 != s.TPOT50 {
				t.Errorf("%s: a token takes %v, %v ms; want 20 within five percent", what, s.TPOT50, s.TPOT99)
			}
		}
	})
}

func TestTheLastTracesAreKept(t *testing.T) {
	var traces history.Traces
	if got := traces.Last(); got != nil {
		t.Errorf("an empty ring has %v", got)
	}
	traces.Add(make([]sdktrace.ReadOnlySpan, 1)) // nothing to draw
	for n := range 30 {
		traces.Add(make([]sdktrace.ReadOnlySpan, n+2))
	}
	got := traces.Last()
	if len(got) != 24 || len(got[0]) != 31 || len(got[23]) != 8 {
		t.Errorf("%d traces are kept", len(got))
	}
}
