package tokenizer

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
)

// approximateSeed keeps the names of text chunks apart from the names of KV blocks.
const approximateSeed = 0x9e3779b97f4a7c15

// bytesPerToken is how much raw text stands for one token in a chunk: the usual ratio for English and code,
// escapes included.
const bytesPerToken = 4

// ApproximateHashes appends to dst names for the chunks of the prompt's text, one chunk of raw
// text for each block of blockSize tokens, and returns it. They serve as keys when there are no
// ids: two prompts that begin alike share the names of the chunks they have in common. They
// live in a namespace of their own, so they can be kept in the same index as real blocks (as
// entries that were routed, not reported) and never match one. Messages are taken as the
// client wrote them.
func ApproximateHashes(dst []blockhash.Hash, pr *prompt.Prompt, blockSize int, ns blockhash.Namespace) []blockhash.Hash {
	if blockSize <= 0 {
		return dst
	}
	c := chunker{dst: dst, size: blockSize * bytesPerToken}
	var head [8]byte
	binary.LittleEndian.PutUint64(head[:], ns.Seed())
	c.state = blockhash.Hash(xxh3.HashSeed(head[:], approximateSeed) ^ xxh3.HashString(pr.Model))
	for _, f := range pr.Fields {
		if f.Name == "tools" || f.Name == "documents" {
			c.write(f.Value) // templates put these first
		}
	}
	switch pr.Kind {
	case prompt.KindText, prompt.KindBatch:
		c.write(bytesOf(pr.Text))
	case prompt.KindChat:
		for _, m := range pr.Messages {
			c.write(m)
		}
	case prompt.KindIDs, prompt.KindBatchIDs, prompt.KindNone:
	}
	return c.dst
}

// chunker cuts a stream of bytes into chunks and chains their hashes.
type chunker struct {
	dst   []blockhash.Hash
	size  int
	rest  []byte
	state blockhash.Hash
}

func (c *chunker) write(b []byte) {
	if len(c.rest) > 0 {
		take := min(c.size-len(c.rest), len(b))
		c.rest = append(c.rest, b[:take]...)
		b = b[take:]
		if len(c.rest) < c.size {
			return
		}
		c.close(c.rest)
		c.rest = c.rest[:0]
	}
	for len(b) >= c.size {
		c.close(b[:c.size])
		b = b[c.size:]
	}
	c.rest = append(c.rest, b...)
}

func (c *chunker) close(chunk []byte) {
	var pair [16]byte
	binary.LittleEndian.PutUint64(pair[:8], uint64(c.state))
	binary.LittleEndian.PutUint64(pair[8:], xxh3.HashSeed(chunk, approximateSeed))
	h := xxh3.HashSeed(pair[:], approximateSeed)
	c.state = blockhash.Hash(max(h, 1)) // zero stands for no block
	c.dst = append(c.dst, c.state)
}
