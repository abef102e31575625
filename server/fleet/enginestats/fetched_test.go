package enginestats

import (
	"strings"
	"testing"
	"time"
)

func TestFetchedTokensAreReadFromTheirSource(t *testing.T) {
	const sources = `vllm:num_requests_running{engine="0",model_name="m"} 0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 100
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 20
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 4096
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 5000
`
	for name, tt := range map[string]struct {
		page    string
		fetched uint64
		counts  bool
	}{
		"by source":                  {sources, 4096, true},
		"of two served models":       {sources + strings.ReplaceAll(sources, `"m"`, `"n"`), 8192, true},
		"by the connector (0.11)":    {"vllm:num_requests_running 0\nvllm:external_prefix_cache_hits_total 5000\n", 5000, true},
		"a source of another name":   {"vllm:num_requests_running 0\nvllm:prompt_tokens_by_source_total{source=\"somewhere\"} 7\n", 0, true},
		"an engine that counts none": {"vllm:num_requests_running 0\n", 0, false},
	} {
		p, err := scan(strings.NewReader(tt.page))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range p.engines {
			if s := e.stats(time.Now()); s.FetchedTokens != tt.fetched || s.Fetches != tt.counts {
				t.Errorf("%s: %d tokens, counted %t; want %d, %t", name, s.FetchedTokens, s.Fetches, tt.fetched, tt.counts)
			}
		}
	}
}
