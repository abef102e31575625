package kvindex

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Loaded counts the ranks and blocks that Load has restored.
type Loaded struct {
	// Ranks is the number of ranks in the snapshot that were taken; Parked counts the ranks among them that
	// are not known yet and wait for AddRank; Skipped the ranks left out because the rank holds facts
	// of its own already.
	Ranks, Parked, Skipped int
	Blocks                 int64
}

// Load restores the ranks of a snapshot. A rank that was added and holds nothing gets the
// snapshot's content at once; one that is not known yet is kept until AddRank names it, and one
// that already has content keeps it. Loaded blocks are guesses until events name them: counting
// of copies begins with the first event, and when the feed becomes exact (SetState), the blocks
// that no event has named are forgotten.
//
// A rank with its feed's position is a fact, not a guess: its feed continues there, unless that knows better, and
// the content replaces the rank's blocks. One without a feed is kept until Claim.
//
// A truncated or damaged snapshot gives the ranks before the damage, and an error that wraps
// ErrSnapshot.
func (s *snapshots) Load(from io.Reader) (Loaded, error) {
	l := &loader{ix: s.ix, from: from, ranks: make(chan *draft, 2)}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range loadWorkers {
		wg.Go(func() {
			for d := range l.ranks {
				n := s.adopt(d.build(s))
				mu.Lock()
				l.done.Ranks += n.Ranks
				l.done.Parked += n.Parked
				l.done.Skipped += n.Skipped
				l.done.Blocks += n.Blocks
				mu.Unlock()
			}
		})
	}
	err := l.read()
	close(l.ranks)
	wg.Wait()
	if err != nil {
		return l.done, fmt.Errorf("load snapshot: %w", err)
	}
	return l.done, nil
}

const (
	loadWorkers = 4
	// maxPosition bounds a feed's position in bytes.
	maxPosition = 1024
)

type loader struct {
	ix    *Index
	from  io.Reader
	buf   []byte
	ranks chan *draft
	taken time.Time // when it was written
	done  Loaded
}

// draft is a rank as read: its tables are built when all of it is there.
type draft struct {
	rank  *rank
	items [][]uint64 // pairs of words, by part
	salts []uint64
}

// next reads a frame. Its body is valid until the next call.
func (l *loader) next() (byte, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(l.from, head[:]); err != nil {
		return 0, nil, damaged("it ends early", err)
	}
	n := binary.LittleEndian.Uint32(head[:4])
	if n > maxFrame {
		return 0, nil, damaged("a frame is too long", nil)
	}
	if need := int(n) + 8; cap(l.buf) < need {
		l.buf = make([]byte, need)
	}
	l.buf = l.buf[:n+8]
	if _, err := io.ReadFull(l.from, l.buf); err != nil {
		return 0, nil, damaged("it ends early", err)
	}
	body := l.buf[:n]
	if xxh3.HashSeed(body, uint64(head[4])) != binary.LittleEndian.Uint64(l.buf[n:]) {
		return 0, nil, damaged("a checksum does not match", nil)
	}
	return head[4], body, nil
}

func damaged(what string, err error) error {
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return fmt.Errorf("%w: %s", errSnapshot, what)
}

func (l *loader) read() error {
	magic := make([]byte, len(snapshotMagic))
	if _, err := io.ReadFull(l.from, magic); err != nil {
		return damaged("it ends early", err)
	}
	if string(magic) != snapshotMagic && string(magic) != olderMagic {
		return damaged("it has another format", nil)
	}
	var d *draft
	for {
		kind, body, err := l.next()
		if err != nil {
			return err
		}
		last := 0
		if d != nil {
			last = len(d.items) - 1
		}
		switch {
		case kind == frameDone && d == nil:
			return nil
		case kind == frameSize && d == nil && len(body) == 8+8*kvblock.Tiers:
			l.taken = time.UnixMilli(int64(binary.LittleEndian.Uint64(body)))
			l.reserve(body[8:])
		case kind == frameRank && d == nil && len(body) > 8:
			d = &draft{rank: newLoaded(l.ix, body)}
			d.rank.taken = l.taken
		case kind == framePosition && d != nil && len(d.items) == 0 && len(body) <= maxPosition:
			d.rank.position = slices.Clone(body)
		case kind == framePart && d != nil && d.rank.loadPart(body):
			d.items = append(d.items, nil)
		case kind == frameItems && d != nil && last >= 0:
			d.items[last] = appendWords(d.items[last], body)
		case kind == frameSalts && d != nil:
			d.salts = appendWords(d.salts, body)
		case kind == frameEnd && d != nil:
			l.ranks <- d
			d = nil
		default:
			return damaged("a frame is invalid", nil)
		}
	}
}

// reserve makes room for the distinct blocks that the snapshot has, within the budget.
func (l *loader) reserve(sizes []byte) {
	budget := uint64(max(l.ix.budget.left(), 0))
	for _, p := range l.ix.tiers {
		n := min(binary.LittleEndian.Uint64(sizes), budget)
		budget -= n
		p.reserve(int64(n))
		sizes = sizes[8:]
	}
}

// appendWords decodes body's pairs of words.
func appendWords(words []uint64, body []byte) []uint64 {
	for ; len(body) >= revEntry; body = body[revEntry:] {
		words = append(words, binary.LittleEndian.Uint64(body), binary.LittleEndian.Uint64(body[8:]))
	}
	return words
}

func newLoaded(ix *Index, body []byte) *rank {
	r := newRank(ix)
	r.face, r.loaded, r.state = new(face), true, kvblock.FeedCold
	r.info.Rank = replica.Rank{
		Replica: replica.ID(body[8:]),
		Index:   int(binary.LittleEndian.Uint32(body)),
	}
	r.info.BlockSize = int(int32(binary.LittleEndian.Uint32(body[4:])))
	return r
}

// loadPart adds the part that body describes and reports whether that is possible.
func (r *rank) loadPart(body []byte) bool {
	if len(body) != 16 || body[0] >= kvblock.Tiers || body[1] > byte(kvblock.KindOther) || body[2] > byte(roleLimit) {
		return false
	}
	number := func(at int) int { return int(int32(binary.LittleEndian.Uint32(body[at:]))) }
	p := &part{
		tier: kvblock.Tier(body[0]), kind: kvblock.Kind(body[1]), role: role(body[2]),
		group: number(4), window: number(8), blockSize: number(12), settled: true,
	}
	if p.group < 0 || p.window < 0 || p.blockSize < 0 || r.find(p.tier, p.group) != nil {
		return false
	}
	if p.role == roleChain {
		if r.chains[p.tier] != nil {
			return false
		}
		r.chains[p.tier] = p
	}
	if p.role == roleLimit && p.tier != kvblock.TierGPU {
		return false
	}
	r.parts = append(r.parts, p)
	return true
}

// build makes the draft's tables. Pairs come in the order of their places, so a table gets its
// full size first: a growing one would crowd all of them into its beginning. Blocks beyond the budget, and blocks that cannot be an
// entry, are left out.
func (d *draft) build(to *snapshots) *rank {
	r, budget := d.rank, &to.ix.budget
	mark := uint64(refGuess)
	if to.feeds == nil {
		r.position = nil
	}
	if r.position != nil {
		mark = 0
	}
	for i, p := range r.parts {
		pairs := d.items[i]
		if over := int64(len(pairs)/2) - budget.left(); over > 0 {
			keep := max(int64(len(pairs)/2)-over, 0)
			r.totals.Cut += int64(len(pairs)/2) - keep
			pairs = pairs[:2*keep]
		}
		p.rev.fill(pairs, mark)
		p.rev.each(func(_, key *uint64) {
			if *key == 0 {
				p.unkeyed++
			}
		})
		budget.held.Add(int64(p.rev.live))
	}
	r.salts.fill(d.salts, 0)
	d.items, d.salts = nil, nil
	return r
}

// fill adds pairs of words to an empty map, with a mark.
func (m *revmap) fill(pairs []uint64, mark uint64) {
	m.room(len(pairs) / 2)
	for ; len(pairs) >= 2; pairs = pairs[2:] {
		id := pairs[0] &^ refMask
		if pairs[0]&refCount == 0 {
			continue
		}
		if name, _ := m.find(id); name == nil {
			m.put(id, pairs[0]&refCount|mark, pairs[1])
		}
	}
}

// adopt gives a loaded rank's content to the rank of its name, or parks it.
func (s *snapshots) adopt(from *rank) Loaded {
	if from.position != nil {
		return s.continued(from)
	}
	to := s.ix.named(from.info.Rank)
	if to == nil {
		return s.parked.park(from)
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	if to.gone || len(to.parts) > 0 {
		s.ix.budget.held.Add(-from.size())
		return Loaded{Skipped: 1}
	}
	to.loaded = true
	return to.take(from)
}

// take makes r hold a loaded rank's blocks; r.mu is held, and r holds nothing.
func (r *rank) take(from *rank) Loaded {
	r.dropGuessed()
	r.parts, r.chains, r.salts, r.taken = from.parts, from.chains, from.salts, from.taken
	if r.info.BlockSize == 0 {
		r.info.BlockSize = from.info.BlockSize
		r.reported.Store(int32(r.info.BlockSize))
	}
	r.totals.Cut += from.totals.Cut
	r.publishAll()
	return Loaded{Ranks: 1, Blocks: from.size()}
}
