package enginestats

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// page is one answer of /metrics.
type page struct {
	engines map[int]*engine // by the engine label; -1: no label
	learned Learned
	tokens  int             // kv_cache_size_tokens
	began   time.Time       // by the engine's clock
	ahead   time.Duration   // of this machine's clock over the engine's
	names   map[string]bool // of the samples that were read
	caching string          // enable_prefix_caching
	offload Offload
	adapters
}

type engine struct {
	running, waiting, usage float64
	queries, hits           float64
	oldQueries, oldHits     float64 // the same under the old names; engines of 0.9.2 and 0.10 report both
	prompt, output          float64
	preemptions             float64
	fetched, found          float64 // by the source of prompt tokens, and by the connector's own count
	sources, connector      bool    // these were there
	prefill, computed       float64 // seconds and tokens, summed over requests that have ended
	seen                    bool    // a gauge of requests was there
	sleep                   Sleep
}

const (
	maxEngines = 4096
	maxLine    = 64 << 10
	maxName    = 512 // of an adapter
	maxRunning = 256 // adapters
)

var errNoEngine = errors.New("no vLLM metrics in the answer")

// scan reads Prometheus text 0.0.4 or OpenMetrics text, line by line, for the few names that
// matter. Lines it does not understand are skipped.
func scan(r io.Reader) (*page, error) {
	p := &page{engines: map[int]*engine{}, names: map[string]bool{}}
	lines := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull): // no line of ours is that long
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = lines.ReadSlice('\n')
			}
		case len(line) > 0:
			p.line(bytes.TrimRight(line, "\r\n"))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			if errors.Is(err, io.EOF) {
				return p, p.finish()
			}
			return nil, fmt.Errorf("read metrics: %w", err)
		}
	}
}

func (p *page) finish() error {
	for _, e := range p.engines {
		if e.seen {
			if p.tokens > 0 && p.learned.BlockSize > 0 {
				p.learned.Blocks = p.tokens / p.learned.BlockSize
			}
			return nil
		}
	}
	return errNoEngine
}

// line adds one sample.
func (p *page) line(line []byte) {
	name, labels, value, ok := sample(line, wanted)
	switch {
	case !ok:
		return
	case offloads(name): // LMCache has many
		p.offload.read(name, labels, value)
		return
	case !p.names[string(name)]:
		p.names[string(name)] = true
	}
	switch string(name) {
	case "process_start_time_seconds":
		if value > 0 && value < 1e11 {
			p.began = time.UnixMilli(int64(value * 1000))
		}
	case "vllm:cache_config_info":
		p.cacheConfig(labels)
	case "vllm:lora_requests_info":
		p.adapt(labels, value)
	case "vllm:engine_sleep_state":
		if e := p.engine(labels); e != nil {
			state, _ := label(labels, "sleep_state")
			e.sleeps(state, value != 0)
		}
	case "vllm:prompt_tokens_by_source_total":
		if e := p.engine(labels); e != nil {
			source, _ := label(labels, "source")
			e.sourced(source, value)
		}
	default:
		if e := p.engine(labels); e != nil {
			e.set(name, value)
		}
	}
}

// sourced adds one of the series of prompt tokens by source.
func (e *engine) sourced(source []byte, tokens float64) {
	e.sources = true
	if string(source) == "external_kv_transfer" {
		e.fetched += tokens
	}
}

// adapters is the newest series of vllm:lora_requests_info, of which there is one for each set of adapters that there was.
type adapters struct {
	written float64 // when it was written, by the engine's clock; 0: none
	slots   int
	running string
}

// adapt adds a series.
func (a *adapters) adapt(labels []byte, written float64) {
	if written <= a.written {
		return
	}
	running, _ := label(labels, "running_lora_adapters")
	*a = adapters{written: written, slots: intLabel(labels, "max_lora"), running: string(running)}
}

// report is the page's word on the adapters of each of so many ranks; nil: it has none.
func (a *adapters) report(ranks int) *Adapters {
	if a.slots == 0 {
		return nil
	}
	r := &Adapters{Slots: a.slots}
	if ranks == 1 {
		r.Running = []string{}
		for name := range strings.SplitSeq(a.running, ",") {
			if name = strings.TrimSpace(name); name != "" && len(name) <= maxName && len(r.Running) < maxRunning {
				r.Running = append(r.Running, name)
			}
		}
	}
	return r
}

// sleeps adds one of the series of the sleep state: of all states one is 1. An engine that is not awake, and says no more, can be woken.
func (e *engine) sleeps(state []byte, is bool) {
	switch string(state) {
	case "awake":
		if !is {
			e.sleep = max(e.sleep, WeightsOffloaded)
		}
	case "discard_all":
		if is {
			e.sleep = DiscardAll
		}
	}
}

// wanted picks the few lines that matter from the thousands of a page.
func wanted(name []byte) bool {
	switch string(name) {
	case "process_start_time_seconds", "vllm:cache_config_info",
		"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
		"vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
		"vllm:gpu_prefix_cache_hits_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
		"vllm:prompt_tokens_by_source_total", "vllm:external_prefix_cache_hits_total", "vllm:num_preemptions_total", "vllm:engine_sleep_state", "vllm:lora_requests_info", "vllm:request_prefill_time_seconds_sum",
		"vllm:request_prefill_kv_computed_tokens_sum":
		return true
	}
	return offloads(name)
}

// set adds a sample. Samples of one name add up (several served models), except for
// shares. The gpu_ names come from engines before 0.11.
func (e *engine) set(name []byte, v float64) {
	switch string(name) {
	case "vllm:request_prefill_time_seconds_sum":
		e.prefill += v
	case "vllm:request_prefill_kv_computed_tokens_sum":
		e.computed += v
	case "vllm:num_requests_running":
		e.running += v
		e.seen = true
	case "vllm:num_requests_waiting":
		e.waiting += v
		e.seen = true
	case "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc":
		e.usage = max(e.usage, v)
	case "vllm:prefix_cache_queries_total":
		e.queries += v
	case "vllm:prefix_cache_hits_total":
		e.hits += v
	case "vllm:gpu_prefix_cache_queries_total":
		e.oldQueries += v
	case "vllm:gpu_prefix_cache_hits_total":
		e.oldHits += v
	case "vllm:prompt_tokens_total":
		e.prompt += v
	case "vllm:generation_tokens_total":
		e.output += v
	case "vllm:num_preemptions_total":
		e.preemptions += v
	case "vllm:external_prefix_cache_hits_total":
		e.found, e.connector = e.found+v, true
	}
}

func (p *page) engine(labels []byte) *engine {
	index := -1
	if text, ok := label(labels, "engine"); ok {
		n, err := strconv.Atoi(string(text))
		if err != nil || n < 0 {
			return nil
		}
		index = n
	}
	e := p.engines[index]
	if e == nil && len(p.engines) < maxEngines {
		e = new(engine)
		p.engines[index] = e
	}
	return e
}

func (p *page) cacheConfig(labels []byte) {
	p.learned.BlockSize = cmp.Or(intLabel(labels, "block_size"), p.learned.BlockSize)
	p.learned.Blocks = cmp.Or(intLabel(labels, "num_gpu_blocks"), p.learned.Blocks)
	p.tokens = cmp.Or(intLabel(labels, "kv_cache_size_tokens"), p.tokens)
	if caching, ok := label(labels, "enable_prefix_caching"); ok {
		p.caching = string(caching)
	}
	p.offload.configured(labels)
}

// intLabel is 0 when the label is missing, "None" or not a positive integer.
func intLabel(labels []byte, name string) int {
	text, _ := label(labels, name)
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 0 || n > math.MaxInt32 {
		return 0
	}
	return n
}
