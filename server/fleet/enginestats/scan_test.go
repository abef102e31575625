package enginestats

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

const python = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-0.6B"} 3.0
vllm:num_requests_running{engine="1",model_name="Qwen/Qwen3-0.6B"} 1.0
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-0.6B"} 2.0
vllm:num_requests_waiting{engine="1",model_name="Qwen/Qwen3-0.6B"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-0.6B"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="Qwen/Qwen3-0.6B"} 1.5
vllm:prefix_cache_queries_total{engine="0",model_name="Qwen/Qwen3-0.6B"} 1.2e+06
vllm:prefix_cache_hits_total{engine="0",model_name="Qwen/Qwen3-0.6B"} 600000.0
vllm:prefix_cache_queries_created{engine="0",model_name="Qwen/Qwen3-0.6B"} 1.7e+09
vllm:prompt_tokens_total{engine="0",model_name="Qwen/Qwen3-0.6B"} 10.0
vllm:generation_tokens_total{engine="0",model_name="Qwen/Qwen3-0.6B"} 20.0
vllm:num_preemptions_total{engine="0",model_name="Qwen/Qwen3-0.6B"} 4.0
vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 0.0
vllm:engine_sleep_state{engine="1",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="1",sleep_state="weights_offloaded"} 1.0
vllm:engine_sleep_state{engine="2",sleep_state="discard_all"} 1.0
vllm:engine_sleep_state{engine="2",sleep_state="awake"} 0.0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql, chat",waiting_lora_adapters="sql,code"} 2.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="2048",sliding_window="None"} 1.0
process_start_time_seconds 1.75e+09
`

// The Rust front end writes OpenMetrics.
const rust = `# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="a \"b\" \\ c},{",engine="0"} 7 1755000000.1
vllm:num_requests_waiting{model_name="x",engine="0"} 1
vllm:gpu_cache_usage_perc{model_name="x",engine="0"} 0.5
vllm:gpu_prefix_cache_hits_total{model_name="x",engine="0"} 5 # {trace_id="z"} 1 2
# EOF
`

func TestScanReadsBothFormats(t *testing.T) {
	p, err := scan(strings.NewReader(python))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	first, second := p.engines[0].stats(now), p.engines[1].stats(now)
	if first.Running != 3 || first.Waiting != 2 || first.KVUsage != 0.25 || first.QueryTokens != 1_200_000 || first.HitTokens != 600_000 ||
		first.PromptTokens != 10 || first.OutputTokens != 20 || first.Preemptions != 4 {
		t.Errorf("engine 0: %+v", first)
	}
	if second.Running != 1 || second.KVUsage != 1 {
		t.Errorf("engine 1: %+v, want 1 running, usage capped at 1", second)
	}
	if third := p.engines[2].stats(now); first.Sleep != Awake || second.Sleep != WeightsOffloaded || third.Sleep != DiscardAll {
		t.Errorf("sleep: %d, %d and %d, want 0, 1 and 2", first.Sleep, second.Sleep, third.Sleep)
	}
	if p.learned != (Learned{BlockSize: 16, Blocks: 2048}) {
		t.Errorf("learned %+v", p.learned)
	}
	if p.began.Unix() != 1_750_000_000 {
		t.Errorf("began %s", p.began)
	}

	if got := p.report(1); got == nil || got.Slots != 4 || !slices.Equal(got.Running, []string{"sql", "chat"}) {
		t.Errorf("of the adapters the newest line counts: %+v", got)
	}
	if got := p.report(2); got == nil || got.Slots != 4 || got.Running != nil {
		t.Errorf("of two ranks it is not known which runs what: %+v", got)
	}

	p, err = scan(strings.NewReader(rust))
	if err != nil {
		t.Fatal(err)
	}
	if s := p.engines[0].stats(now); s.Running != 7 || s.Waiting != 1 || s.KVUsage != 0.5 || s.HitTokens != 5 {
		t.Errorf("OpenMetrics: %+v", s)
	}
}

func TestScanBoundsTheAdapters(t *testing.T) {
	many := strings.Repeat("a,", 400)
	for line, want := range map[string]int{
		`vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 2`:          0,
		`vllm:lora_requests_info{max_lora="4",running_lora_adapters="` + many + `"} 2`:                       maxRunning,
		`vllm:lora_requests_info{max_lora="4",running_lora_adapters="` + strings.Repeat("a", 600) + `,b"} 2`: 1,
		`vllm:lora_requests_info{max_lora="x",running_lora_adapters="a"} 2`:                                  -1,
		`vllm:lora_requests_info{running_lora_adapters="a"} 2`:                                               -1,
		`vllm:lora_requests_info{max_lora="4"`:                                                               -1,
	} {
		p, err := scan(strings.NewReader("vllm:num_requests_running 1\n" + line))
		if err != nil {
			t.Fatal(err)
		}
		got := -1
		if r := p.report(1); r != nil {
			got = len(r.Running)
		}
		if got != want {
			t.Errorf("%.80s: %d adapters run, want %d", line, got, want)
		}
	}
}

func TestScanHybridModelsUseTheTokenCount(t *testing.T) {
	p, err := scan(strings.NewReader(`vllm:num_requests_running 1
vllm:cache_config_info{block_size="16",num_gpu_blocks="None",kv_cache_size_tokens="32000"} 1.0`))
	if err != nil || p.learned.Blocks != 2000 {
		t.Errorf("learned %+v, %v, want 2000 blocks", p.learned, err)
	}
}

func TestScanSkipsWhatItDoesNotUnderstand(t *testing.T) {
	long := `vllm:other{x="` + strings.Repeat("y", 3*maxLine) + `"} 1` + "\n"
	for name, text := range map[string]string{
		"empty": "", "not metrics": "<html></html>", "another server": "up 1\n", "no value": `vllm:num_requests_running{engine="0"}`,
		"open label": `vllm:num_requests_running{engine="0 1`, "not finite": `vllm:num_requests_running{engine="0"} NaN`,
		"odd engine": `vllm:num_requests_running{engine="-4"} 1`, "long line": long,
	} {
		if _, err := scan(strings.NewReader(text)); !errors.Is(err, errNoEngine) {
			t.Errorf("%s: %v, want errNoEngine", name, err)
		}
	}
	p, err := scan(strings.NewReader(long + "junk{\nvllm:num_requests_running 2"))
	if err != nil || p.engines[-1].running != 2 {
		t.Errorf("a good line after bad ones: %v", err)
	}
	huge := &engine{running: 1e300, waiting: -5, queries: 1e300, usage: -1}
	if s := huge.stats(time.Now()); s.Running < 0 || s.Waiting != 0 || s.KVUsage != 0 {
		t.Errorf("absurd values: %+v", s)
	}
}

func TestLabels(t *testing.T) {
	list := []byte(`a="x", b="y\"\\\nz",engine="12",`)
	for name, want := range map[string]string{"a": "x", "b": "y\"\\\nz", "engine": "12"} {
		if got, ok := label(list, name); !ok || string(got) != want {
			t.Errorf("label %s: %q, %v, want %q", name, got, ok, want)
		}
	}
	if got, ok := label(list, "c"); ok {
		t.Errorf("label c: %q, want none", got)
	}
}

func FuzzScan(f *testing.F) {
	for _, seed := range []string{python[:600], rust, `vllm:num_requests_running{engine="0"} 1e400`, "vllm:cache_config_info{block_size=\"\\", "{} 1\n \n#"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := scan(strings.NewReader(string(text)))
		if err != nil {
			return
		}
		for index, e := range p.engines {
			s := e.stats(time.Now())
			if index < -1 || s.Running < 0 || s.Waiting < 0 || s.KVUsage < 0 || s.KVUsage > 1 || math.IsNaN(s.KVUsage) {
				t.Errorf("engine %d: %+v", index, s)
			}
		}
		if p.learned.BlockSize < 0 || p.learned.Blocks < 0 {
			t.Errorf("learned %+v", p.learned)
		}
	})
}

func BenchmarkScan(b *testing.B) {
	var page strings.Builder
	page.WriteString(python)
	for i := range 2000 { // histograms make up most of a real page
		fmt.Fprintf(&page, "vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"%d\",model_name=\"Qwen/Qwen3-0.6B\"} %d.0\n", i, i)
	}
	text := page.String()
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := scan(strings.NewReader(text)); err != nil {
			b.Fatal(err)
		}
	}
}

func TestCacheBelowTheGPUIsReported(t *testing.T) {
	const running = "vllm:num_requests_running{engine=\"0\"} 0\n"
	for name, tt := range map[string]struct {
		text string
		want Offload
	}{
		"nothing": {"", Offload{}},
		"sizes and bytes": {`vllm:kv_offload_config_info{cpu_blocks_per_chunk="8",cpu_kv_cache_size_bytes="65536",cpu_kv_cache_size_tokens="64000",cpu_num_chunks="500",engine="0",model_name="m"} 1.0
vllm:kv_offload_store_bytes_total{engine="0",model_name="m"} 3.2e+06`, Offload{By: "OffloadingConnector", Tokens: 64000, Chunk: 8, Counted: true, Stored: true}},
		"nothing stored":     {`vllm:kv_offload_store_bytes_total{engine="0",model_name="m"} 0.0`, Offload{By: "OffloadingConnector", Counted: true}},
		"two engines":        {"vllm:kv_offload_store_bytes_total{engine=\"0\"} 5\nvllm:kv_offload_store_bytes_total{engine=\"1\"} 0", Offload{By: "OffloadingConnector", Counted: true, Stored: true}},
		"a length not known": {`vllm:kv_offload_config_info{cpu_blocks_per_chunk="1",cpu_kv_cache_size_tokens="None",engine="0"} 1.0`, Offload{By: "OffloadingConnector", Chunk: 1}},
		"the older counter":  {"vllm:kv_offload_total_bytes_total{engine=\"0\",transfer_type=\"CPU_to_GPU\"} 9\nvllm:kv_offload_total_bytes_total{engine=\"0\",transfer_type=\"GPU_to_CPU\"} 0", Offload{By: "OffloadingConnector", Counted: true}},
		"LMCache":            {"lmcache:num_stored_tokens_total{model_name=\"m\"} 12", Offload{By: "LMCache"}},
		"the settings":       {`vllm:cache_config_info{block_size="16",kv_offloading_backend="native",kv_offloading_size="8.0"} 1.0`, Offload{By: "OffloadingConnector"}},
		"LMCache by them":    {`vllm:cache_config_info{block_size="16",kv_offloading_backend="lmcache",kv_offloading_size="8.0"} 1.0`, Offload{By: "LMCache"}},
		"none by them":       {`vllm:cache_config_info{block_size="16",kv_offloading_backend="native",kv_offloading_size="None"} 1.0`, Offload{}},
	} {
		p, err := scan(strings.NewReader(running + tt.text + "\n"))
		if err != nil || p.offload != tt.want {
			t.Errorf("%s: %+v, %v, want %+v", name, p.offload, err, tt.want)
		}
	}
}
