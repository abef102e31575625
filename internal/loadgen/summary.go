package loadgen

import (
	"slices"
	"time"
)

// Summary has the figures of a load.
type Summary struct {
	Requests, Failed int
	// FirstError is the first failure, nil without one.
	FirstError error
	// PromptTokens were asked, CachedTokens of them found in the cache.
	PromptTokens, CachedTokens, OutputTokens int
	// PerReplica counts requests by who answered.
	PerReplica map[string]int
	Elapsed    time.Duration
	ttft       []time.Duration
	total      time.Duration
}

// Add takes a result in.
func (s *Summary) Add(r Result) {
	s.Requests++
	if r.Err != nil {
		s.Failed++
		if s.FirstError == nil {
			s.FirstError = r.Err
		}
		return
	}
	if s.PerReplica == nil {
		s.PerReplica = map[string]int{}
	}
	s.PerReplica[r.Replica]++
	s.PromptTokens += r.PromptTokens
	s.CachedTokens += r.CachedTokens
	s.OutputTokens += r.OutputTokens
	s.ttft = append(s.ttft, r.TTFT)
	s.total += r.Total
}

// CachedShare is the share of prompt tokens found in the cache, 0 to 1.
func (s *Summary) CachedShare() float64 {
	if s.PromptTokens == 0 {
		return 0
	}
	return float64(s.CachedTokens) / float64(s.PromptTokens)
}

// MeanTTFT is the mean time to the first token, 0 without answers.
func (s *Summary) MeanTTFT() time.Duration {
	var sum time.Duration
	for _, t := range s.ttft {
		sum += t
	}
	return sum / time.Duration(max(1, len(s.ttft)))
}

// MeanTotal is the mean time to the last byte of an answer, 0 without answers.
func (s *Summary) MeanTotal() time.Duration { return s.total / time.Duration(max(1, len(s.ttft))) }

// TTFT is the time to the first token that the share q of the requests did not exceed.
func (s *Summary) TTFT(q float64) time.Duration {
	if len(s.ttft) == 0 {
		return 0
	}
	sorted := slices.Clone(s.ttft)
	slices.Sort(sorted)
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
