package enginesim

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim/core"
)

// meters are the histograms of requests that have ended, with vLLM's names.
type meters struct {
	mu   sync.Mutex
	list map[string]*histogram // guarded by mu
}

type histogram struct {
	bounds []float64
	counts []uint64
	sum    float64
	n      uint64
}

var (
	timeBounds  = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	countBounds = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}
)

// requestHistograms are written even before the first request.
var requestHistograms = []struct {
	name   string
	bounds []float64
}{
	{"time_to_first_token_seconds", timeBounds},
	{"request_time_per_output_token_seconds", timeBounds},
	{"e2e_request_latency_seconds", timeBounds},
	{"request_queue_time_seconds", timeBounds},
	{"request_inference_time_seconds", timeBounds},
	{"request_prefill_time_seconds", timeBounds},
	{"request_decode_time_seconds", timeBounds},
	{"request_prompt_tokens", countBounds},
	{"request_generation_tokens", countBounds},
	{"request_prefill_kv_computed_tokens", countBounds},
}

// observe books one ended sequence.
func (m *meters) observe(t core.Timings, prompt, cached, made int) {
	if t.Done.IsZero() || t.FirstToken.IsZero() || t.Scheduled.IsZero() {
		return // it never ran
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	seconds := func(name string, from, to time.Time) { m.add(name, to.Sub(from).Seconds()) }
	seconds("time_to_first_token_seconds", t.Arrived, t.FirstToken)
	seconds("e2e_request_latency_seconds", t.Arrived, t.Done)
	seconds("request_queue_time_seconds", t.Arrived, t.Scheduled)
	seconds("request_inference_time_seconds", t.Scheduled, t.Done)
	seconds("request_prefill_time_seconds", t.Scheduled, t.FirstToken)
	seconds("request_decode_time_seconds", t.FirstToken, t.Done)
	if made > 1 {
		m.add("request_time_per_output_token_seconds", t.Done.Sub(t.FirstToken).Seconds()/float64(made-1))
	}
	m.add("request_prompt_tokens", float64(prompt))
	m.add("request_generation_tokens", float64(made))
	m.add("request_prefill_kv_computed_tokens", float64(prompt-cached))
}

// add needs m.mu.
func (m *meters) add(name string, v float64) {
	h := m.get(name)
	h.sum += v
	h.n++
	for i, b := range h.bounds {
		if v <= b {
			h.counts[i]++
		}
	}
}

// get needs m.mu.
func (m *meters) get(name string) *histogram {
	if m.list == nil {
		m.list = map[string]*histogram{}
		for _, r := range requestHistograms {
			m.list[r.name] = &histogram{bounds: r.bounds, counts: make([]uint64, len(r.bounds))}
		}
	}
	return m.list[name]
}

// exposition writes Prometheus text.
type exposition struct {
	strings.Builder
	model string
}

func (x *exposition) family(name, kind, help string) {
	fmt.Fprintf(x, "# HELP vllm:%s %s\n# TYPE vllm:%s %s\n", name, help, name, kind)
}

func (x *exposition) sample(name string, rank int, extra string, v float64) {
	fmt.Fprintf(x, "vllm:%s{engine=\"%d\",%smodel_name=%q} %v\n", name, rank, extra, x.model, v)
}

// metrics answers GET /metrics with the series that routers read.
func (l *life) metrics(c *call) {
	x := &exposition{model: l.cfg.Models[0]}
	stats := make([]core.Stats, len(l.cores))
	for i, core := range l.cores {
		stats[i] = core.Reported()
	}
	gauge := func(name, help string, value func(core.Stats) float64) {
		x.family(name, "gauge", help)
		for rank, s := range stats {
			x.sample(name, rank, "", value(s))
		}
	}
	counter := func(name, help string, value func(core.Stats) uint64) {
		x.family(name, "counter", help)
		for rank, s := range stats {
			x.sample(name+"_total", rank, "", float64(value(s)))
		}
	}
	gauge("num_requests_running", "Number of requests in model execution batches.", func(s core.Stats) float64 { return float64(s.Running) })
	gauge("num_requests_waiting", "Number of requests waiting to be processed.", func(s core.Stats) float64 { return float64(s.Waiting) })
	gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", func(s core.Stats) float64 { return s.Usage })
	if !l.features.has(newUsage) {
		gauge("gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.", func(s core.Stats) float64 { return s.Usage })
	}
	counter("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", func(s core.Stats) uint64 { return s.Queries })
	counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", localHits)
	counter("num_preemptions", "Cumulative number of preemption from the engine.", func(s core.Stats) uint64 { return s.Preemptions })
	counter("prompt_tokens", "Number of prefill tokens processed.", func(s core.Stats) uint64 { return s.PromptTokens })
	counter("generation_tokens", "Number of generation tokens processed.", func(s core.Stats) uint64 { return s.GenerationTokens })
	if cfg := &l.cfg.Core.Lower; cfg.Host.Blocks > 0 || cfg.Shared != nil || l.cfg.Transfer.Connector != "" {
		counter("external_prefix_cache_queries", "External prefix cache queries from KV connector, in number of tokens.", func(s core.Stats) uint64 { return s.Queries - localHits(s) })
		counter("external_prefix_cache_hits", "External prefix cache hits from KV connector, in number of tokens.", func(s core.Stats) uint64 { return s.Loaded + s.Received })
		if l.features.has(sources) {
			x.family("prompt_tokens_by_source", "counter", "Number of prompt tokens by source.")
			for rank, s := range stats {
				x.sample("prompt_tokens_by_source_total", rank, `source="local_compute",`, float64(s.Queries-s.Hits-s.Loaded))
				x.sample("prompt_tokens_by_source_total", rank, `source="local_cache_hit",`, float64(localHits(s)))
				x.sample("prompt_tokens_by_source_total", rank, `source="external_kv_transfer",`, float64(s.Loaded+s.Received))
			}
		}
	}
	if l.cfg.Core.Lower.Host.Blocks > 0 && l.features.has(offloadMetrics) {
		x.offload(&l.cfg.Core, stats)
	}
	x.family("request_success", "counter", "Count of successfully processed requests.")
	for rank, s := range stats {
		for f := core.FinishStop; f <= core.FinishAbort; f++ {
			x.sample("request_success_total", rank, fmt.Sprintf("finished_reason=%q,", f), float64(s.Finished[f]))
		}
	}
	if slots := l.cfg.Core.Adapters.Slots; slots > 0 {
		x.adapterInfo(slots, stats)
	}
	if l.cfg.SleepMode && !l.cfg.Rust {
		l.sleep.series(x, stats)
	}
	l.meters.histograms(x, &l.features)
	kind := "text/plain; version=0.0.4; charset=utf-8"
	if l.cfg.Rust {
		kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
		x.WriteString("# EOF\n")
	} else {
		l.cacheInfo(x)
		// As Python's Prometheus client reads it from the kernel: to a hundredth of a second.
		fmt.Fprintf(x, "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.\n# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %.2f\n",
			float64(l.started.UnixMilli())/1000)
	}
	c.send(http.StatusOK, kind, []byte(x.String()))
}

// histograms are kept for the replica as a whole and labelled with engine 0.
func (m *meters) histograms(x *exposition, f *features) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range requestHistograms {
		if r.name == "request_prefill_kv_computed_tokens" && !f.has(computedTokens) {
			continue
		}
		h := m.get(r.name)
		x.family(r.name, "histogram", "Histogram of "+strings.ReplaceAll(r.name, "_", " ")+".")
		for i, b := range h.bounds {
			x.sample(r.name+"_bucket", 0, fmt.Sprintf("le=\"%v\",", b), float64(h.counts[i]))
		}
		x.sample(r.name+"_bucket", 0, `le="+Inf",`, float64(h.n))
		x.sample(r.name+"_count", 0, "", float64(h.n))
		x.sample(r.name+"_sum", 0, "", h.sum)
	}
}

// offload are the series of the OffloadingConnector, with host memory of one block to a chunk.
func (x *exposition) offload(c *core.Config, stats []core.Stats) {
	x.family("kv_offload_config_info", "gauge", "Static configuration of the KV offload managers of this engine instance.")
	for rank := range stats {
		x.sample("kv_offload_config_info", rank, fmt.Sprintf("cpu_blocks_per_chunk=\"1\",cpu_kv_cache_size_tokens=\"%d\",cpu_num_chunks=\"%d\",", c.Lower.Host.Blocks*c.BlockSize, c.Lower.Host.Blocks), 1)
	}
	x.family("kv_offload_store_bytes", "counter", "Total bytes stored from GPU to offload storage.")
	for rank, s := range stats {
		x.sample("kv_offload_store_bytes_total", rank, "", float64(s.Kept)*float64(c.BlockSize)*tokenBytes)
	}
}

// tokenBytes is the KV cache of a token of a 70B model.
const tokenBytes = 320 << 10

func (l *life) cacheInfo(x *exposition) {
	x.family("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
	caching := "False"
	if l.cfg.Core.PrefixCaching {
		caching = "True"
	}
	for rank := range l.cores {
		fmt.Fprintf(x, "vllm:cache_config_info{block_size=\"%d\",cache_dtype=\"auto\",enable_prefix_caching=%q,engine=\"%d\",gpu_memory_utilization=\"0.92\",num_cpu_blocks=\"None\",num_gpu_blocks=\"%d\",num_gpu_blocks_override=\"None\",prefix_caching_hash_algo=\"sha256\",sliding_window=\"None\"} 1.0\n",
			l.cfg.Core.BlockSize, caching, rank, l.cfg.Core.Blocks)
	}
}

// localHits are the prompt tokens that lay on the GPU before their request came. Tokens that were read from another engine lie there, too, when their
// request is looked up.
func localHits(s core.Stats) uint64 { return s.Hits - min(s.Hits, s.Received) }
