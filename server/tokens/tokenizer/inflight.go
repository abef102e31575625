package tokenizer

import (
	"cmp"
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// A request in flight needs the names of its prompt's blocks, at half a byte for each token. It needs the ids, at four bytes, only
// where they will be handed over, or where its caller reads them. Otherwise Encode names the blocks and lets the ids go.

const (
	// headTokens are the first ids, which the parity guard compares with the first block that an engine stores: more than any block
	// has. A request in flight always has them.
	headTokens = 2048
	// defaultBlock is the block size of a model with blocks that were never named and replicas that do not report it.
	defaultBlock = 16
)

// remains describe the ids that were let go.
type remains struct {
	known, longest int
	head           []uint32
	// sizes are the block sizes for which the model's blocks are named; ns is the namespace of the request.
	sizes *blockSizes
	ns    blockhash.Namespace
}

// keep counts the memory of the request in flight, and lets the ids go where it does not need them or has no room for them.
func (p *Pool) keep(req *Request, enc *Encoding, m *model) *Encoding {
	enc.grip.held = &p.held
	enc.remains.sizes, enc.remains.ns = &m.sizes, req.Namespace
	wanted := enc.wanted(req.Keep)
	switch {
	case enc.given != nil: // the client's ids, which its body bounds
		if !wanted {
			enc.letGo(req.Replicas)
		}
	case enc.entry == nil:
	case !p.held.take(enc.names, enc.names.bytes()+4*min(enc.names.length, headTokens), p.held.limit):
		bare := none(req.Prompt, ReasonMemory, enc.Tokens)
		bare.grip.held = &p.held
		return bare
	default:
		enc.grip.names = enc.names
		if e := enc.entry; (wanted || m.withheld(req.Prompt, enc) == "") && p.held.take(e, e.bytes()-e.names.bytes(), p.held.forIDs()) {
			enc.grip.ids = e
			break
		}
		enc.letGo(req.Replicas)
	}
	return enc
}

// wanted reports whether the ids stay while the request is in flight, if there is room: the ids of a short prompt do, and the ids for a
// model with blocks that were never named, so that their size is not known.
func (enc *Encoding) wanted(keep int) bool {
	size := enc.Known()
	if len(enc.Batch) > 0 {
		size = enc.Tokens
	}
	return size <= headTokens || size <= keep && !enc.Partial || len(enc.remains.sizes.known()) == 0
}

// letGo names the blocks of every size that the model's have, and lets the ids go.
func (enc *Encoding) letGo(replicas []*replica.Replica) {
	sizes := enc.remains.sizes.known()
	if len(sizes) == 0 {
		for _, r := range replicas {
			if size := cmp.Or(r.BlockSize, defaultBlock); len(sizes) < maxHashLists && !slices.Contains(sizes, size) {
				sizes = append(sizes, size)
			}
		}
	}
	for _, size := range sizes {
		enc.Hashes(size, enc.remains.ns)
	}
	enc.remains.known, enc.remains.longest = len(enc.IDs), enc.Longest()
	enc.remains.head = slices.Clone(enc.head())
	enc.IDs, enc.Batch, enc.entry, enc.given = nil, nil, nil, nil
	enc.grip.drop()
}

// LetGo says that the ids are not needed any more. It must not be called before the encoding's hashes were.
func (enc *Encoding) LetGo() {
	if enc.grip.ids != nil && enc.Known() > headTokens {
		enc.letGo(nil)
	}
}

// Known is the number of ids that are known, whether they are still in memory or not.
func (enc *Encoding) Known() int { return max(len(enc.IDs), enc.remains.known) }

// head are the first ids.
func (enc *Encoding) head() []uint32 {
	if enc.IDs == nil {
		return enc.remains.head
	}
	return enc.IDs[:min(len(enc.IDs), headTokens)]
}

// Reserve reports whether there is room for the ids of the whole prompt, which the caller keeps until Release.
func (enc *Encoding) Reserve() bool {
	g := &enc.grip
	if g.ids == nil && enc.given == nil && !g.own && g.held != nil {
		g.own = g.held.take(enc, 4*enc.Tokens, g.held.forIDs())
		return g.own
	}
	return true
}

// Release says that the request that asked for the encoding has ended. The encoding stays usable for other holders. It does nothing
// for nil and the second time; it is not safe for concurrent use.
func (enc *Encoding) Release() {
	if enc == nil || enc.grip.held == nil {
		return
	}
	g := &enc.grip
	g.drop()
	if g.names != nil {
		g.held.release(g.names)
	}
	if g.own {
		g.held.release(enc)
	}
	*g = grip{}
}
