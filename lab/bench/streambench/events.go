package streambench

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"

	"github.com/kvpilot/kvpilot/server/wire/zmtp"
	"github.com/kvpilot/kvpilot/sim/enginesim/core"
	"github.com/kvpilot/kvpilot/sim/enginesim/feed"
)

const (
	blockTokens = 16
	// cacheBlocks is the size that the fake upstream's metrics name.
	cacheBlocks = 100_000
)

// layout is how vLLM 0.24, which the fake upstream claims to be, writes events.
const layout = feed.Maps | feed.Medium | feed.LoRAName | feed.ExtraKeys | feed.ItemOffsets | feed.Group | feed.SpecKind

// prefixCache is an engine's KV cache as far as its events show it: the blocks of every prompt that was served, of which the oldest
// make room.
type prefixCache struct {
	publish func(payload []byte)

	mu   sync.Mutex
	held map[uint64]bool // guarded by mu
	ring []uint64        // guarded by mu: the blocks that are held, in the order of their coming, from next on
	next int             // guarded by mu
}

func newPrefixCache(blocks int, publish func([]byte)) *prefixCache {
	return &prefixCache{publish: publish, held: make(map[uint64]bool, blocks), ring: make([]uint64, blocks)}
}

// served notes a prompt, and publishes the changes in one batch.
func (c *prefixCache) served(tokens []uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var events []core.Event
	var removed []core.Digest
	parent := uint64(0)
	for from := 0; from+blockTokens <= len(tokens); from += blockTokens {
		block := tokens[from : from+blockTokens]
		hash := chained(parent, block)
		if !c.held[hash] {
			if old := c.ring[c.next]; old != 0 {
				delete(c.held, old)
				removed = append(removed, core.Digest{Lo: old})
			}
			c.held[hash], c.ring[c.next] = true, hash
			c.next = (c.next + 1) % len(c.ring)
			// Blocks that follow each other are one event.
			if last := len(events) - 1; last >= 0 && events[last].Hashes[len(events[last].Hashes)-1].Lo == parent {
				events[last].Hashes = append(events[last].Hashes, core.Digest{Lo: hash})
				events[last].Tokens = append(events[last].Tokens, block...)
			} else {
				events = append(events, core.Event{Kind: core.Stored, Hashes: []core.Digest{{Lo: hash}}, Parent: core.Digest{Lo: parent},
					HasParent: from > 0, Tokens: append([]uint32(nil), block...), BlockSize: blockTokens, First: from})
			}
		}
		parent = hash
	}
	if len(removed) > 0 {
		events = append([]core.Event{{Kind: core.Removed, Hashes: removed}}, events...)
	}
	if len(events) > 0 {
		c.publish(feed.Encode(nil, layout, time.Now(), 0, events)) // within the lock, so that batches are in order
	}
}

// chained names the block of tokens that follows parent.
func chained(parent uint64, tokens []uint32) uint64 {
	buf := binary.LittleEndian.AppendUint64(make([]byte, 0, 8+4*blockTokens), parent)
	for _, t := range tokens {
		buf = binary.LittleEndian.AppendUint32(buf, t)
	}
	return max(1, xxh3.Hash(buf))
}

// ServeUpstreamWithEvents is the main function of an upstream's process that publishes KV events. Its line of output has the
// addresses of HTTP, of the events and of their replay.
func ServeUpstreamWithEvents(ctx context.Context, out io.Writer) error {
	group, ctx := errgroup.WithContext(ctx)
	f, publisher := newFake(), zmtp.NewPublisher(zmtp.PublisherParams{})
	f.cache = newPrefixCache(cacheBlocks, func(payload []byte) { publisher.Publish(payload) })
	var listeners [2]net.Listener
	for i := range listeners {
		l, err := zmtp.Listen(ctx, "tcp://127.0.0.1:0")
		if err != nil {
			return err
		}
		listeners[i] = l
	}
	group.Go(func() error { return publisher.Serve(ctx, listeners[0]) })
	group.Go(func() error { return publisher.ServeReplay(ctx, listeners[1]) })
	group.Go(func() error {
		return serveLoopbackWith(ctx, f.routes(), out, fmt.Sprintf(" tcp://%s tcp://%s", listeners[0].Addr(), listeners[1].Addr()))
	})
	return group.Wait()
}
