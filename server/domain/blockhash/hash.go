package blockhash

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// Hash names a block: its tokens and all tokens before them. Zero never stands for a block.
type Hash uint64

const baseSeed = 1337

// Namespace separates blocks whose tokens are equal and whose KV cache is not.
type Namespace struct {
	// Adapter is the LoRA adapter's name; empty for the base model.
	Adapter string
	// Salt is the request's cache_salt; empty for none.
	Salt string
}

// Seed returns the namespace's seed for the hash of a block's own tokens.
func (n Namespace) Seed() uint64 {
	seed := uint64(baseSeed)
	if n.Adapter != "" {
		seed += xxh3.HashString(n.Adapter)
	}
	if n.Salt != "" {
		seed += SaltTerm(n.Salt)
	}
	return seed
}

// SaltTerm is added to the namespace's seed for a cache salt that is not empty.
func SaltTerm(salt string) uint64 { return xxh3.HashStringSeed(salt, 1) }

// Item is a multimodal item of a prompt: its tokens are at Start up to, not including, End.
type Item struct {
	// ID is the engine's identifier of the item (its content hash or the client's uuid).
	ID         string
	Start, End int
}

// ChainItems is Chain for a prompt with multimodal items, which are in order of Start: a block's
// hash includes the identifiers of the items that overlap it.
func ChainItems(dst []Hash, tokens []uint32, blockSize int, ns Namespace, items []Item) []Hash {
	if len(items) == 0 {
		return Chain(dst, tokens, blockSize, ns)
	}
	seed := ns.Seed()
	var parent Hash
	var ids []string
	for from := 0; from+blockSize <= len(tokens); from += blockSize {
		ids = ids[:0]
		for _, item := range items {
			if item.Start < from+blockSize && item.End > from {
				ids = append(ids, item.ID)
			}
		}
		parent = Next(parent, LocalWith(tokens[from:from+blockSize], seed, ids))
		dst = append(dst, parent)
	}
	return dst
}

// LocalWith is Local for a block that the items named ids overlap, in order of their places:
// the XXH3-64 (seed 0) of each identifier follows the tokens as uint64 little-endian.
func LocalWith(tokens []uint32, seed uint64, ids []string) uint64 {
	if len(ids) == 0 {
		return Local(tokens, seed)
	}
	b := append(make([]byte, 0, 4*len(tokens)+8*len(ids)), littleEndian(tokens)...)
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint64(b, xxh3.HashString(id))
	}
	return xxh3.HashSeed(b, seed)
}

// Chain appends to dst the hashes of the complete blocks of tokens, blockSize tokens each, and
// returns it. A trailing partial block has no hash. blockSize must be positive.
func Chain(dst []Hash, tokens []uint32, blockSize int, ns Namespace) []Hash {
	return Extend(dst, 0, tokens, blockSize, ns.Seed())
}

// Extend appends the hashes of the complete blocks of tokens that follow the block named parent
// (zero: they start the prompt), hashed with the namespace seed.
func Extend(dst []Hash, parent Hash, tokens []uint32, blockSize int, seed uint64) []Hash {
	dst = slices.Grow(dst, len(tokens)/blockSize)
	for len(tokens) >= blockSize {
		parent = Next(parent, Local(tokens[:blockSize], seed))
		dst = append(dst, parent)
		tokens = tokens[blockSize:]
	}
	return dst
}

// Local is the hash of one block's own tokens.
func Local(tokens []uint32, seed uint64) uint64 {
	return xxh3.HashSeed(littleEndian(tokens), seed)
}

// Next names the block with local hash local that follows the block named parent; parent zero
// means that it starts the prompt.
func Next(parent Hash, local uint64) Hash {
	if parent == 0 {
		return nonZero(local)
	}
	var pair [16]byte
	binary.LittleEndian.PutUint64(pair[:8], uint64(parent))
	binary.LittleEndian.PutUint64(pair[8:], local)
	return nonZero(xxh3.HashSeed(pair[:], baseSeed))
}

// nonZero keeps zero free as the mark of no block.
func nonZero(h uint64) Hash {
	if h == 0 {
		return 1
	}
	return Hash(h)
}

// nativeLittle reports whether uint32s are stored in memory as the scheme needs them.
var nativeLittle = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// littleEndian returns the tokens' bytes, without a copy on little-endian machines.
func littleEndian(tokens []uint32) []byte {
	if len(tokens) == 0 {
		return nil
	}
	if nativeLittle {
		return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens))
	}
	b := make([]byte, 4*len(tokens))
	for i, t := range tokens {
		binary.LittleEndian.PutUint32(b[4*i:], t)
	}
	return b
}
