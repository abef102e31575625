package config

import (
	"github.com/kvpilot/kvpilot/server/kit/memlimit"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

// WithinMemory returns the settings with the limits of parts that are not set computed as shares of a limit, set ones lowered to
// their shares, and the names of the latter. Blocks beyond the index cost cache hits, prompts beyond the token cache cost time, bodies
// beyond their limit are rejected, and a request whose blocks' names find no room is routed without them.
func (c Config) WithinMemory(l memlimit.Limit) (Config, []string) {
	if l.Bytes == 0 {
		return c, nil
	}
	var lowered []string
	all := quantity.Bytes(l.Bytes)
	lower := func(name string, bytes *quantity.Bytes, most quantity.Bytes) {
		if *bytes > most {
			*bytes, lowered = most, append(lowered, name)
		}
	}
	lower("kvindex.max_bytes", &c.KVIndex.MaxBytes, all/8*3)
	bodies := max(bodiesShare(all), c.Gateway.MaxBodyBytes)
	if c.Gateway.MaxBodiesBytes == 0 {
		c.Gateway.MaxBodiesBytes = bodies
	}
	lower("gateway.max_bodies_bytes", &c.Gateway.MaxBodiesBytes, bodies)
	if c.Tokenizer.CacheBytes < 0 {
		c.Tokenizer.CacheBytes = cacheShare(all)
	}
	lower("tokenizer.cache_bytes", &c.Tokenizer.CacheBytes, all/8)
	if c.Tokenizer.HeldBytes == 0 {
		c.Tokenizer.HeldBytes = all / 8
	}
	lower("tokenizer.held_bytes", &c.Tokenizer.HeldBytes, all/8)
	return c, lowered
}

// bodiesShare is a quarter of a small memory, and five sixteenths from 1 GiB on: the parts of fixed size leave more of it.
func bodiesShare(memory quantity.Bytes) quantity.Bytes {
	return min(max(memory/4, memory/8*3-64<<20), memory/16*5)
}

// cacheShare is a sixteenth, and in a small memory an eighth. No cache is larger than the largest index.
func cacheShare(memory quantity.Bytes) quantity.Bytes {
	return min(max(memory/16, min(memory/8, 32<<20)), 2<<30)
}
