package console

import (
	"math"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/decision"
)

// span of the history.
const (
	historySeconds = 300
	ttftBuckets    = 48
)

// Second is one second of the router's life.
type Second struct {
	// T is the second since 1970.
	T        int64 `json:"t"`
	Requests int   `json:"requests"`
	Failed   int   `json:"failed"`
	// PromptTokens and CachedTokens are the engines' own counts, of answers that gave both.
	PromptTokens int `json:"prompt_tokens"`
	CachedTokens int `json:"cached_tokens"`
	// P50 and P99 are times to the first token in milliseconds; 0 when none was seen.
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	// Regret is the shadow policy's mean regret in milliseconds; Agreed the share of its decisions
	// that were the served ones, -1 when none ran.
	Regret float64 `json:"shadow_regret_ms"`
	Agreed float64 `json:"shadow_agreed"`
}

// second is a Second while it is counted.
type second struct {
	Second
	ttft    [ttftBuckets]uint32 // log-spaced, see bucket
	shadows int
	agreed  int
	regret  float64
}

// History counts outcomes by second.
type History struct {
	mu   sync.Mutex
	ring [historySeconds]second
}

// Outcome counts an ended request.
func (h *History) Outcome(o decision.Outcome) {
	h.at(time.Now(), func(s *second) {
		s.Requests++
		if o.End == decision.EndFailed || o.End == decision.EndMoved {
			s.Failed++
		}
		if o.PromptTokens > 0 && o.CachedTokens >= 0 {
			s.PromptTokens += o.PromptTokens
			s.CachedTokens += o.CachedTokens
		}
		if o.TTFT > 0 {
			s.ttft[bucket(o.TTFT)]++
		}
	})
}

// Decision counts what the shadow policy would have done.
func (h *History) Decision(d *decision.Decision) {
	if d.Shadow == nil {
		return
	}
	h.at(time.Now(), func(s *second) {
		s.shadows++
		s.regret += d.Shadow.Regret
		if d.Shadow.Agrees {
			s.agreed++
		}
	})
}

func (h *History) at(now time.Time, count func(*second)) {
	t := now.Unix()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.ring[t%historySeconds]
	if s.T != t {
		*s = second{Second: Second{T: t}}
	}
	count(s)
}

// Seconds returns the last five minutes, oldest first; seconds without requests are left out.
func (h *History) Seconds(now time.Time) []Second {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]Second, 0, historySeconds)
	for t := now.Unix() - historySeconds + 1; t <= now.Unix(); t++ {
		s := &h.ring[t%historySeconds]
		if s.T != t {
			continue
		}
		out := s.Second
		out.P50, out.P99 = s.quantile(.5), s.quantile(.99)
		out.Agreed = -1
		if s.shadows > 0 {
			out.Agreed = float64(s.agreed) / float64(s.shadows)
			out.Regret = 1000 * s.regret / float64(s.shadows)
		}
		list = append(list, out)
	}
	return list
}

// bucket i holds times up to 1 ms times 2^(i/3): fine enough for a chart up to a minute.
func bucket(d time.Duration) int {
	ms := max(1, float64(d)/float64(time.Millisecond))
	return min(ttftBuckets-1, int(math.Ceil(3*math.Log2(ms))))
}

func (s *second) quantile(q float64) float64 {
	total := uint32(0)
	for _, n := range s.ttft {
		total += n
	}
	if total == 0 {
		return 0
	}
	want := uint32(math.Ceil(q * float64(total)))
	seen := uint32(0)
	for i, n := range s.ttft {
		if seen += n; seen >= want {
			return math.Exp2(float64(i) / 3)
		}
	}
	return 0
}
