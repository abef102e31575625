package loadgen_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/internal/loadgen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// endpoint answers "so" to everything, with half of the prompt cached.
type endpoint struct {
	mu       sync.Mutex
	bodies   []string // guarded by mu
	sessions map[string]int
	fail     bool
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	e.mu.Lock()
	e.bodies = append(e.bodies, string(b))
	e.sessions[r.Header.Get("X-Session-Id")]++
	e.mu.Unlock()
	if e.fail {
		http.Error(w, "no", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("X-Kvpilot-Replica", "r1")
	fmt.Fprint(w, `data: {"choices":[{"delta":{"content":"so"}}]}`+"\n\n")
	fmt.Fprint(w, `data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":5}}}`+"\n\ndata: [DONE]\n\n")
}

func config(url string) loadgen.Config {
	return loadgen.Config{URL: url, Model: "m", Conversations: 6, Turns: 3, Concurrency: 2, Tenants: 2, SystemWords: 5, UserWords: 4, MaxTokens: 3, Seed: 1}
}

func TestTurnsFollowEachOther(t *testing.T) {
	e := &endpoint{sessions: map[string]int{}}
	s := httptest.NewServer(e)
	defer s.Close()
	var sum loadgen.Summary
	if err := loadgen.Run(t.Context(), config(s.URL), sum.Add); err != nil {
		t.Fatal(err)
	}
	if sum.Requests != 18 || sum.Failed != 0 || sum.CachedShare() != 0.5 || sum.PerReplica["r1"] != 18 || sum.OutputTokens != 18 {
		t.Errorf("summary %+v", sum)
	}
	if len(e.sessions) != 6 {
		t.Errorf("%d sessions, want 6", len(e.sessions))
	}
	longest := ""
	for _, b := range e.bodies {
		if len(b) > len(longest) {
			longest = b
		}
	}
	if n := strings.Count(longest, `"role":"assistant","content":"so"`); n != 2 {
		t.Errorf("the last turn has %d answers, want 2: %s", n, longest)
	}
	if d := sum.TTFT(0.5); d <= 0 || d > time.Minute {
		t.Errorf("median time to the first token %v", d)
	}
}

func TestAFailureEndsItsConversation(t *testing.T) {
	e := &endpoint{sessions: map[string]int{}, fail: true}
	s := httptest.NewServer(e)
	defer s.Close()
	var sum loadgen.Summary
	if err := loadgen.Run(t.Context(), config(s.URL), sum.Add); err != nil {
		t.Fatal(err)
	}
	if sum.Requests != 6 || sum.Failed != 6 || !strings.Contains(sum.FirstError.Error(), "503") {
		t.Errorf("%d requests, %d failed, first %v", sum.Requests, sum.Failed, sum.FirstError)
	}
}

func TestItEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := loadgen.Run(ctx, config("http://127.0.0.1:1"), func(loadgen.Result) {}); err == nil {
		t.Error("a load under an ended context gave no error")
	}
}

func TestTimes(t *testing.T) {
	var s loadgen.Summary
	for i := 1; i <= 100; i++ {
		s.Add(loadgen.Result{TTFT: time.Duration(i) * time.Millisecond, Total: time.Duration(2*i) * time.Millisecond})
	}
	s.Add(loadgen.Result{Err: errors.New("refused"), Total: time.Hour})
	if first, whole := s.MeanTTFT(), s.MeanTotal(); first != 50500*time.Microsecond || whole != 101*time.Millisecond {
		t.Errorf("means %v and %v", first, whole)
	}
	var none loadgen.Summary
	if none.MeanTTFT() != 0 || none.MeanTotal() != 0 || none.TTFT(0.5) != 0 {
		t.Error("times without answers")
	}
	if a, b := s.TTFT(0.5), s.TTFT(0.99); a != 51*time.Millisecond || b != 100*time.Millisecond {
		t.Errorf("quantiles %v and %v", a, b)
	}
}
