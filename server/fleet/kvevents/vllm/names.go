package vllm

import "github.com/kvpilot/kvpilot/server/domain/kvblock"

// tierOf maps a medium to a tier. Names are compared without regard to case; whatever is not
// known is slower than the known ones, so it counts as the lowest tier.
func tierOf(medium []byte) kvblock.Tier {
	var lower [16]byte
	if len(medium) > len(lower) {
		return kvblock.TierDisk
	}
	for i, c := range medium {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		lower[i] = c
	}
	switch string(lower[:len(medium)]) {
	case "", "gpu", "device", "cuda", "hbm", "xpu", "tpu", "npu":
		return kvblock.TierGPU
	case "cpu", "cpu_pinned", "cpu_tier1", "host", "host_pinned", "dram":
		return kvblock.TierCPU
	}
	return kvblock.TierDisk // storage, fs, obj, disk, nvme, ssd, external, cpu_tier2, ...
}

// kindOf maps a kv_cache_spec_kind. A kind that a later version invents forms no chain.
func kindOf(name []byte) kvblock.Kind {
	switch string(name) {
	case "":
		return kvblock.KindUnknown
	case "full_attention", "mla_attention", "sink_full_attention":
		return kvblock.KindFull
	case "sliding_window", "sliding_window_mla", "chunked_local_attention":
		return kvblock.KindWindow
	case "mamba":
		return kvblock.KindMamba
	}
	return kvblock.KindOther
}

// formsPrefix reports whether the group's blocks are the prefix chain.
func formsPrefix(kind kvblock.Kind, group int) bool {
	return kind == kvblock.KindFull || kind == kvblock.KindUnknown && group <= 0
}
