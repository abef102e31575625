package config

import (
	"slices"
	"testing"

	"github.com/kvpilot/kvpilot/server/kit/memlimit"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

func TestLimitsOfPartsFitTheProcess(t *testing.T) {
	large := Default()
	large.Tokenizer.CacheBytes, large.Tokenizer.HeldBytes, large.Gateway.MaxBodiesBytes = 48<<20, 64<<20, 160<<20
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

// Limits that are not set grow with the memory, and leave a tenth of it.
func TestLimitsOfPartsAreSharesOfTheMemory(t *testing.T) {
	for _, tt := range []struct{ memory, bodies, cache, held quantity.Bytes }{ // in MiB
		{256, 64, 32, 32},
		{512, 128, 32, 64},
		{1 << 10, 320, 64, 128},
		{4 << 10, 1280, 256, 512},
		{64 << 10, 20 << 10, 2 << 10, 8 << 10},
	} {
		c, _ := Default().WithinMemory(memlimit.Limit{Bytes: int64(tt.memory) << 20})
		if c.Gateway.MaxBodiesBytes != tt.bodies<<20 || c.Tokenizer.CacheBytes != tt.cache<<20 || c.Tokenizer.HeldBytes != tt.held<<20 {
			t.Errorf("of %d MiB, bodies take %d bytes, the token cache %d, requests in flight %d", tt.memory, c.Gateway.MaxBodiesBytes, c.Tokenizer.CacheBytes, c.Tokenizer.HeldBytes)
		}
		if all := c.KVIndex.MaxBytes + c.Gateway.MaxBodiesBytes + c.Tokenizer.CacheBytes + c.Tokenizer.HeldBytes; all > tt.memory<<20/10*9 {
			t.Errorf("of %d MiB, all parts take %d bytes", tt.memory, all)
		}
		if err := c.Validate(); err != nil {
			t.Errorf("the computed limits are not valid: %v", err)
		}
	}
	set := Default()
	set.Tokenizer.CacheBytes, set.Tokenizer.HeldBytes, set.Gateway.MaxBodiesBytes = 0, 1<<20, 100<<20
	if c, lowered := set.WithinMemory(memlimit.Limit{Bytes: 16 << 30}); lowered != nil || c.Tokenizer.CacheBytes != 0 || c.Tokenizer.HeldBytes != 1<<20 || c.Gateway.MaxBodiesBytes != 100<<20 {
		t.Errorf("settings were changed: %v", lowered)
	}
}
