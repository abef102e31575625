package vllm

import (
	"bytes"
	"encoding/binary"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
)

// hashSize is the length of an encoded hash: a mark and eight bytes.
const hashSize = 9

// pattern is the removal that was read just before, as bytes: vLLM sends one event for each removed block, which differ in
// the hash alone. An event with the same bytes around its hash means the same, so that only the hash is read.
type pattern struct {
	head, tail []byte // around the hash; head is empty when there is no pattern
}

// learn makes the event between start and rest the pattern if it removes one block with a hash of full width.
func (d *Decoder) learn(start, rest []byte) {
	if !d.event.removed || d.event.plain == 0 {
		return
	}
	at := len(start) - d.event.plain
	d.last = pattern{head: start[:at], tail: start[at+hashSize : len(start)-len(rest)]}
}

// repeated reads the event at the head of b if it follows the pattern, adds its block to the removal before it, and returns the
// event's size; zero if it does not.
func (d *Decoder) repeated(b []byte) int {
	head, tail := d.last.head, d.last.tail
	size := len(head) + hashSize + len(tail)
	if len(head) == 0 || len(b) < size || len(d.hashes) >= maxHashes || b[len(head)] != wideUint ||
		!bytes.Equal(b[:len(head)], head) || !bytes.Equal(b[len(head)+hashSize:size], tail) {
		return 0
	}
	d.hashes = append(d.hashes, kvblock.EngineHash(binary.BigEndian.Uint64(b[len(head)+1:])))
	removed := &d.batch.Events[len(d.batch.Events)-1].Removed
	removed.Hashes = d.hashes[len(d.hashes)-1-len(removed.Hashes) : len(d.hashes) : len(d.hashes)]
	return size
}
