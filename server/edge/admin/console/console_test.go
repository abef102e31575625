package console_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/edge/admin/console"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a router with one replica.
type fake struct{ states atomic.Int64 }

func (f *fake) State() console.State {
	f.states.Add(1)
	return console.State{Version: "test", Replicas: []console.Replica{{ID: "r0"}}}
}

func (f *fake) Explain(id string) []console.Full {
	if id != "d1" {
		return []console.Full{}
	}
	return []console.Full{{Decision: &decision.Decision{ID: "d1"}}}
}

func (f *fake) Traces() []console.Trace { return []console.Trace{{ID: "t1"}} }

func (f *fake) DryRun(_ context.Context, model, text string, body []byte) (*decision.Decision, error) {
	if model == "bad" {
		return nil, errors.New("dial tcp 10.0.0.1: secret")
	}
	return &decision.Decision{Model: model, PromptChars: len(text) + len(body)}, nil
}

func handler(t *testing.T, f *fake) http.Handler {
	t.Helper()
	h, err := console.New(f, console.NewHistory()).Handler()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func do(h http.Handler, method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return w
}

func TestThePageNeedsNothingFromElsewhere(t *testing.T) {
	h := handler(t, &fake{})
	for _, path := range []string{"/console/", "/console/app.js", "/console/style.css", "/console/chart.js", "/console/parts.js", "/console/detail.js", "/console/tables.js", "/console/traces.js", "/console/tables.css", "/console/icon.svg"} {
		w := do(h, http.MethodGet, path, "")
		if w.Code != http.StatusOK || w.Body.Len() == 0 {
			t.Errorf("%s: status %d, %d bytes", path, w.Code, w.Body.Len())
		}
		for _, elsewhere := range []string{"https://", "//cdn", "@import", "innerHTML", "eval("} {
			if strings.Contains(w.Body.String(), elsewhere) {
				t.Errorf("%s contains %q", path, elsewhere)
			}
		}
		if !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'self'") {
			t.Errorf("%s has no content security policy", path)
		}
	}
	if w := do(h, http.MethodGet, "/console", ""); w.Code != http.StatusMovedPermanently {
		t.Errorf("/console: status %d", w.Code)
	}
}

func TestDataRoutes(t *testing.T) {
	h := handler(t, &fake{})
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		has, hasNot        string
	}{
		"state":         {http.MethodGet, "/console/api/state", "", 200, `"r0"`, ""},
		"explain":       {http.MethodGet, "/console/api/explain?id=d1", "", 200, `"d1"`, ""},
		"explain none":  {http.MethodGet, "/console/api/explain?id=d2", "", 200, `[]`, ""},
		"history":       {http.MethodGet, "/console/api/history", "", 200, `{"step":15,"points":[]}`, ""},
		"traces":        {http.MethodGet, "/console/api/traces", "", 200, `"t1"`, ""},
		"choose":        {http.MethodPost, "/console/api/choose", `{"model":"m","text":"abc"}`, 200, `"prompt_chars":3`, ""},
		"no JSON":       {http.MethodPost, "/console/api/choose", `{`, 400, "JSON", ""},
		"hidden errors": {http.MethodPost, "/console/api/choose", `{"model":"bad"}`, 500, "internal error", "10.0.0.1"},
		"too large":     {http.MethodPost, "/console/api/choose", `{"text":"` + strings.Repeat("x", 2<<20) + `"}`, 400, "1 MiB", ""},
		"wrong method":  {http.MethodPost, "/console/api/state", "", 405, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := do(h, c.method, c.path, c.body)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.has) {
				t.Errorf("status %d, body %s", w.Code, w.Body)
			}
			if c.hasNot != "" && strings.Contains(w.Body.String(), c.hasNot) {
				t.Errorf("body shows %q: %s", c.hasNot, w.Body)
			}
		})
	}
}

func TestViewersShareOneStateASecond(t *testing.T) {
	f := &fake{}
	h := handler(t, f)
	for range 50 {
		do(h, http.MethodGet, "/console/api/state", "")
	}
	if n := f.states.Load(); n != 1 {
		t.Errorf("the state was made %d times, want once", n)
	}
}

func TestWatchingEndsWithItsViewer(t *testing.T) {
	s := httptest.NewServer(handler(t, &fake{}))
	defer s.Close()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/console/api/watch", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 6)
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "data: " {
		t.Errorf("first bytes %q, %v", first, err)
	}
	cancel()
	resp.Body.Close()
	s.Client().CloseIdleConnections()
}

func TestHistoryCountsBySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := console.NewHistory()
		for range 99 {
			h.Outcome(decision.Outcome{TTFT: 10 * time.Millisecond, PromptTokens: 100, CachedTokens: 60})
		}
		h.Outcome(decision.Outcome{TTFT: 5 * time.Second, PromptTokens: 100, CachedTokens: -1, End: decision.EndFailed})
		h.Decision(&decision.Decision{Shadow: &decision.Shadow{Agrees: true, Regret: .2}})
		h.Decision(&decision.Decision{Shadow: &decision.Shadow{Regret: .4}})
		h.Decision(&decision.Decision{})
		time.Sleep(2 * time.Second)
		h.Outcome(decision.Outcome{})
		got := h.Seconds(time.Now())
		if len(got) != 2 {
			t.Fatalf("%d seconds, want 2", len(got))
		}
		s := got[0]
		if s.Requests != 100 || s.Failed != 1 || s.PromptTokens != 9900 || s.CachedTokens != 5940 {
			t.Errorf("counted %+v", s)
		}
		if s.P50 < 9.5 || s.P50 > 10.5 || s.P99 < 9.5 || s.P99 > 10.5 {
			t.Errorf("p50 %v, p99 %v; want 10 ms within five percent", s.P50, s.P99)
		}
		if m := h.Minute(time.Now()); m.Requests != 101-1 || m.Seconds != 2 || m.P50 < 9.5 || m.P50 > 10.5 {
			t.Errorf("the minute is %+v", m)
		}
		if s.Agreed != .5 || s.Regret < 299 || s.Regret > 301 {
			t.Errorf("shadow agreed %v, regret %v ms; want 0.5 and 300", s.Agreed, s.Regret)
		}
		time.Sleep(301 * time.Second)
		if got := h.Seconds(time.Now()); len(got) != 0 {
			t.Errorf("%d seconds are left after five minutes", len(got))
		}
		if m := h.Minute(time.Now()); m.Requests != 0 || m.Seconds != 60 || m.P50 != 0 {
			t.Errorf("the empty minute is %+v", m)
		}
		step, hour := h.Hour(time.Now())
		if len(hour) != 1 || hour[0].Requests != 101 || hour[0].T%int64(step) != 0 || hour[0].P50 < 9.5 || hour[0].P50 > 10.5 {
			t.Errorf("the hour has steps of %d: %+v", step, hour)
		}
		time.Sleep(time.Hour)
		if _, hour := h.Hour(time.Now()); len(hour) != 0 {
			t.Errorf("%d steps are left after an hour", len(hour))
		}
		if _, err := json.Marshal(s); err != nil {
			t.Error(err)
		}
	})
}
