package indexbench

import (
	"fmt"
	"math/rand/v2"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/sim/replay"
)

const (
	blockTokens = 16
	idBlocks    = 512 / blockTokens // blocks per hash id of a trace
)

// Request is one request of a trace.
type Request struct {
	Timestamp   int64 // in milliseconds
	InputLength int
	HashIDs     []uint32
}

func (r *Request) blocks() int { return min(r.InputLength/blockTokens, len(r.HashIDs)*idBlocks) }

// ReadTrace reads a trace file in Mooncake's form, gzipped when its name ends in .gz.
func ReadTrace(path string) ([]Request, error) {
	t, err := replay.ReadTrace(path)
	if err != nil {
		return nil, err
	}
	var list []Request
	for _, c := range t.Calls {
		r := Request{Timestamp: int64(c.At * 1000), InputLength: c.In}
		for _, id := range c.IDs {
			r.HashIDs = append(r.HashIDs, uint32(id))
		}
		if r.blocks() > 0 {
			list = append(list, r)
		}
	}
	if len(list) == 0 || t.Closed {
		return nil, fmt.Errorf("trace %s has no usable request", path)
	}
	return list, nil
}

// SyntheticTrace makes conversations whose turns extend each other, shaped like the public
// conversation trace: a mean of about 23 ids per prompt, some of them shared system prompts.
func SyntheticTrace(requests int, seed uint64) []Request {
	dice := rand.New(rand.NewPCG(seed, 1))
	type session struct{ ids []uint32 }
	var open []*session
	next := uint32(64) // below: the system prompts
	list := make([]Request, 0, requests)
	for i := range requests {
		var s *session
		if len(open) > 0 && dice.Float64() < 0.55 {
			s = open[dice.IntN(len(open))]
		} else {
			s = &session{ids: []uint32{uint32(dice.ExpFloat64()*4) % 64}}
			open = append(open, s)
			if len(open) > 200 {
				open = open[1:]
			}
		}
		for n := 1 + int(dice.ExpFloat64()*13); n > 0; n-- {
			s.ids = append(s.ids, next)
			next++
		}
		ids := append([]uint32(nil), s.ids...)
		list = append(list, Request{Timestamp: int64(i) * 300, InputLength: len(ids)*512 - dice.IntN(500), HashIDs: ids})
	}
	return list
}

// player expands requests of a trace that is played several times over; each round has ids of
// its own.
type player struct {
	requests []Request
	span     uint32 // ids per round
	tokens   []uint32
}

func newPlayer(requests []Request) *player {
	p := &player{requests: requests}
	for _, r := range requests {
		for _, id := range r.HashIDs {
			p.span = max(p.span, id+1)
		}
	}
	return p
}

// prompt returns the tokens of blocks [from, to) of the n-th request, counted over all rounds.
// They are valid until the next call with the same dst.
func (p *player) prompt(dst []uint32, n, from, to int) []uint32 {
	r := &p.requests[n%len(p.requests)]
	base := uint32(n/len(p.requests)) * p.span
	dst = dst[:0]
	for b := from; b < to; b++ {
		first := ((base+r.HashIDs[b/idBlocks])*idBlocks + uint32(b%idBlocks)) * 7
		for k := range uint32(blockTokens) {
			dst = append(dst, first+k)
		}
	}
	return dst
}

// hashes appends the block hashes of the n-th request.
func (p *player) hashes(dst []blockhash.Hash, n int) []blockhash.Hash {
	r := &p.requests[n%len(p.requests)]
	p.tokens = p.prompt(p.tokens, n, 0, r.blocks())
	return blockhash.Chain(dst, p.tokens, blockTokens, blockhash.Namespace{})
}
