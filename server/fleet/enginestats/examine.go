package enginestats

import (
	"context"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Examination is one reading of a replica's metrics.
type Examination struct {
	Learned
	// Ranks is the number of engines with metrics of their own.
	Ranks int
	// Missing are the names that the poller uses and the page lacks, each with its names in earlier versions.
	Missing []string
	// Caching is the engine's enable_prefix_caching, "True" or "False"; empty: it does not say.
	Caching string
	// Ahead is how far this machine's clock is ahead of the replica's, to a second; zero when the replica does not say the time.
	Ahead time.Duration
	// Stranded is the used share of the KV cache, 0 to 1, of engines without a request: the largest one.
	Stranded float64
	// Offload is the engine's report of KV cache below the GPU.
	Offload Offload
}

// used are the names that the poller reads; any one of a row is enough.
var used = [][]string{
	{"process_start_time_seconds"},
	{"vllm:cache_config_info"},
	{"vllm:num_requests_running"},
	{"vllm:num_requests_waiting"},
	{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
	{"vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"},
	{"vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"},
	{"vllm:prompt_tokens_total"},
	{"vllm:generation_tokens_total"},
}

// Examine reads a replica's metrics once, as the poller does. It changes nothing.
func (p *Poller) Examine(ctx context.Context, r *replica.Replica) (Examination, error) {
	page, err := p.fetch(ctx, r)
	if err != nil {
		return Examination{}, err
	}
	e := Examination{Learned: page.learned, Ranks: len(page.engines), Caching: page.caching, Ahead: page.ahead, Offload: page.offload}
	for _, one := range page.engines {
		if s := one.stats(time.Time{}); s.Running == 0 && s.Waiting == 0 {
			e.Stranded = max(e.Stranded, s.KVUsage)
		}
	}
	for _, row := range used {
		found := false
		for _, name := range row {
			found = found || page.names[name]
		}
		if !found {
			e.Missing = append(e.Missing, row[0])
		}
	}
	return e, nil
}
