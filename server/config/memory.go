package config

import (
	"github.com/kvpilot/kvpilot/server/kit/memlimit"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

// WithinMemory returns the settings with the limits of parts lowered to their shares of a limit, and the names of those that
// were. What the index cannot hold costs cache hits, what the token cache cannot hold costs time, what bodies cannot hold is rejected,
// and a request whose ids find no room is routed without them.
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
	lower("gateway.max_bodies_bytes", &c.Gateway.MaxBodiesBytes, max(all/4, c.Gateway.MaxBodyBytes))
	lower("tokenizer.cache_bytes", &c.Tokenizer.CacheBytes, all/8)
	lower("tokenizer.held_bytes", &c.Tokenizer.HeldBytes, all/8)
	return c, lowered
}
