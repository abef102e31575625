package config

import (
	"slices"
	"testing"

	"github.com/kvpilot/kvpilot/server/kit/memlimit"
)

func TestLimitsOfPartsFitTheProcess(t *testing.T) {
	large := Default()
	large.Tokenizer.CacheBytes = 48 << 20
	c, lowered := large.WithinMemory(memlimit.Limit{Bytes: 256 << 20})
	if c.KVIndex.MaxBytes != 96<<20 || c.Gateway.MaxBodiesBytes != max(64<<20, c.Gateway.MaxBodyBytes) || c.Tokenizer.CacheBytes != 32<<20 || c.Tokenizer.HeldBytes != 32<<20 {
		t.Errorf("index %d, bodies %d, token cache %d", c.KVIndex.MaxBytes, c.Gateway.MaxBodiesBytes, c.Tokenizer.CacheBytes)
	}
	if want := []string{"kvindex.max_bytes", "gateway.max_bodies_bytes", "tokenizer.cache_bytes", "tokenizer.held_bytes"}; !slices.Equal(lowered, want) {
		t.Errorf("lowered %v, want %v", lowered, want)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("what was lowered is not valid: %v", err)
	}
	if _, lowered := Default().WithinMemory(memlimit.Limit{Bytes: 16 << 30}); lowered != nil {
		t.Errorf("lowered %v, with plenty of memory", lowered)
	}
	if _, lowered := Default().WithinMemory(memlimit.Limit{}); lowered != nil {
		t.Errorf("lowered %v, without a limit", lowered)
	}
}
