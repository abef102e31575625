package core

import "github.com/kvpilot/kvpilot/server/domain/kvblock"

// Kind says what an Event reports.
type Kind uint8

// The kinds of events.
const (
	Stored Kind = iota
	Removed
	Cleared
)

// Event is one change of a rank's cache.
type Event struct {
	Kind   Kind
	Tier   kvblock.Tier
	Hashes []Digest
	// Parent is the block that the first one continues; HasParent is false at a prompt's start.
	Parent    Digest
	HasParent bool
	// Tokens are the tokens of all blocks. The slice must not be changed. They and BlockSize are missing where a tier's events name blocks only.
	Tokens    []uint32
	BlockSize int
	Space     Space
	// First is the index in the sequence of the first block's first token.
	First int
}

// Space distinguishes blocks of equal tokens.
type Space struct {
	// Adapter and AdapterID name a LoRA adapter; empty and 0 for the base model.
	Adapter   string
	AdapterID int
	// Salt is the request's cache_salt.
	Salt string
	// Items are the images and their places in the prompt, in order.
	Items []Item
}

// Item is an image and the tokens that stand for it.
type Item struct {
	ID             string
	Offset, Length int
}

// Overlapping returns the items that reach into the tokens from start to end.
func (s Space) Overlapping(start, end int) []Item {
	var list []Item
	for _, it := range s.Items {
		if it.Offset < end && it.Offset+it.Length > start {
			list = append(list, it)
		}
	}
	return list
}

// extra is the part of the hash of the block from start to end in addition to its tokens.
func (s Space) extra(start, end int) []byte {
	var b []byte
	if s.Adapter != "" {
		b = append(append(b, 1), s.Adapter...)
	}
	for _, it := range s.Overlapping(start, end) {
		b = append(append(b, 2), it.ID...)
		at := it.Offset - start
		b = append(b, byte(at), byte(at>>8), byte(at>>16), byte(at>>24))
	}
	if s.Salt != "" && start == 0 {
		b = append(append(b, 3), s.Salt...)
	}
	return b
}
