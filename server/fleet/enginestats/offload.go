package enginestats

import "bytes"

// Offload is an engine's own report of KV cache below the GPU. The zero value: it reports none.
type Offload struct {
	// By names the part of the engine that keeps it: OffloadingConnector or LMCache.
	By string
	// Tokens is its size in host memory, Chunk how many GPU blocks it moves at once; 0 when it does not say.
	Tokens, Chunk int
	// Stored reports whether the engine has stored anything there; Counted is set when it says so.
	Stored, Counted bool
}

const (
	byOffloading = "OffloadingConnector"
	byLMCache    = "LMCache"
	// lmcachePrefix begins the names of LMCache's metrics.
	lmcachePrefix = "lmcache:"
)

// read adds a sample of a metric that offloads knows.
func (o *Offload) read(name, labels []byte, value float64) {
	switch string(name) {
	case "vllm:kv_offload_config_info":
		o.By = byOffloading
		o.Tokens, o.Chunk = max(o.Tokens, intLabel(labels, "cpu_kv_cache_size_tokens")), max(o.Chunk, intLabel(labels, "cpu_blocks_per_chunk"))
	case "vllm:kv_offload_store_bytes_total":
		o.By, o.Counted, o.Stored = byOffloading, true, o.Stored || value > 0
	case "vllm:kv_offload_total_bytes_total": // of versions that do not count both directions apart
		o.By = byOffloading
		if way, _ := label(labels, "transfer_type"); string(way) == "GPU_to_CPU" {
			o.Counted, o.Stored = true, o.Stored || value > 0
		}
	default:
		o.By = byLMCache
	}
}

// configured adds the settings of the engine's cache: they name the backend before it has metrics of its own.
func (o *Offload) configured(labels []byte) {
	size, set := label(labels, "kv_offloading_size")
	if !set || string(size) == "None" || o.By != "" {
		return
	}
	o.By = byOffloading
	if backend, _ := label(labels, "kv_offloading_backend"); string(backend) == "lmcache" {
		o.By = byLMCache
	}
}

// offloads reports whether a metric's name is one that read knows.
func offloads(name []byte) bool {
	switch string(name) {
	case "vllm:kv_offload_config_info", "vllm:kv_offload_store_bytes_total", "vllm:kv_offload_total_bytes_total":
		return true
	}
	return bytes.HasPrefix(name, []byte(lmcachePrefix))
}
