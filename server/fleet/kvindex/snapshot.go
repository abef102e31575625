package kvindex

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// A snapshot is a magic word, then frames: length (uint32), kind (one byte), body, and the
// XXH3-64 of kind and body; all numbers are little-endian. A rank is a rank frame, the entry
// frames of each of its parts after a part frame, salts, and an end frame; the file ends with
// a done frame. A position frame after a rank frame says where the rank's feed stood; formats before 02 have none. A reader
// restores every rank up to the last end frame that it reached, so that a truncated or
// damaged file gives its complete ranks. Unknown kinds are refused: they come with a new magic.
const (
	snapshotMagic = "KVPIDX02"
	olderMagic    = "KVPIDX01"
	frameEntries  = 8192
	maxFrame      = 16*frameEntries + 1024
)

const (
	frameRank byte = iota + 1
	framePart
	frameItems
	frameSalts
	frameEnd
	frameDone
	frameSize
	framePosition
)

// errSnapshot is wrapped by errors about a snapshot that is damaged, truncated or of another
// format.
var errSnapshot = errors.New("not a complete snapshot")

// snapshots writes the ranks' blocks, and restores them to the ranks of the same names. A loaded rank is a guess until events
// name its blocks, unless its feed continues where the snapshot was taken.
type snapshots struct {
	ix     *Index
	feeds  Feeds
	parked parked
}

// Snapshot writes the facts that ranks with a name hold. It copies one rank at a time, and only that rank's events wait for
// as long; replaying the events since then brings a loaded one up to date.
func (s *snapshots) Snapshot(w io.Writer) error {
	return s.SnapshotOf(w, func(replica.ID, kvblock.FeedState) bool { return true })
}

// SnapshotOf is Snapshot for some ranks: wanted is asked with the replica of each, and its state.
func (s *snapshots) SnapshotOf(w io.Writer, wanted func(of replica.ID, state kvblock.FeedState) bool) error {
	if _, err := io.WriteString(w, snapshotMagic); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	out := &snapshotWriter{to: w}
	sizes := binary.LittleEndian.AppendUint64(nil, uint64(time.Now().UnixMilli()))
	for _, p := range s.ix.tiers {
		sizes = binary.LittleEndian.AppendUint64(sizes, uint64(p.distinct()))
	}
	out.frame(frameSize, sizes)
	ranks := append(slices.Clone(s.ix.all()), s.parked.all()...) // ranks not found yet are not to be lost
	for _, r := range ranks {
		if r == nil || !wanted(r.info.Rank.Replica, r.stateNow()) {
			continue
		}
		out.rank(s, r)
		if out.err != nil {
			return fmt.Errorf("write snapshot: %w", out.err)
		}
	}
	out.frame(frameDone, nil)
	if out.err != nil {
		return fmt.Errorf("write snapshot: %w", out.err)
	}
	return nil
}

func (r *rank) stateNow() kvblock.FeedState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// distinct counts the blocks in the lookup tables.
func (p *plane) distinct() int {
	live := 0
	for n := range p.parts {
		p.parts[n].mu.Lock()
		live += p.parts[n].live
		p.parts[n].mu.Unlock()
	}
	return live
}

type snapshotWriter struct {
	to  io.Writer
	buf []byte
	err error
}

// frame writes one frame; an earlier error stays.
func (s *snapshotWriter) frame(kind byte, body []byte) {
	if s.err != nil {
		return
	}
	head := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
	head = append(head, kind)
	sum := binary.LittleEndian.AppendUint64(nil, xxh3.HashSeed(body, uint64(kind)))
	for _, b := range [][]byte{head, body, sum} {
		if _, err := s.to.Write(b); err != nil {
			s.err = err
			return
		}
	}
}

// image is a copy of a rank's blocks, taken under its lock and written without it.
type image struct {
	info     RankInfo
	parts    []part
	salts    revmap
	position []byte
}

// still takes a rank's image while its feed stands still.
func (s *snapshots) still(r *rank) (img image, ok bool) {
	if s.feeds == nil || s.ix.rank(r.writer.slot) != r {
		img, ok = r.image()
		img.position = r.position
		return img, ok
	}
	s.feeds.Still(r.writer.slot, func(position []byte) {
		img, ok = r.image()
		img.position = slices.Clone(position)
	})
	return img, ok
}

func (r *rank) image() (image, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone || r.state == kvblock.FeedNone || len(r.parts) == 0 || r.info.Rank == (replica.Rank{}) {
		return image{}, false
	}
	img := image{info: r.info, salts: r.salts.clone()}
	for _, p := range r.parts {
		c := *p
		c.rev = p.rev.clone()
		img.parts = append(img.parts, c)
	}
	return img, true
}

func (m *revmap) clone() revmap {
	c := *m
	c.words = append([]uint64(nil), m.words...)
	c.more = nil
	for id, n := range m.more {
		if c.more == nil {
			c.more = make(map[uint64]uint32, len(m.more))
		}
		c.more[id] = n
	}
	return c
}

func (s *snapshotWriter) rank(from *snapshots, r *rank) {
	img, ok := from.still(r)
	if !ok {
		return
	}
	b := binary.LittleEndian.AppendUint32(s.buf[:0], uint32(img.info.Rank.Index))
	b = binary.LittleEndian.AppendUint32(b, uint32(img.info.BlockSize))
	b = append(b, img.info.Rank.Replica...)
	s.frame(frameRank, b)
	if img.position != nil {
		s.frame(framePosition, img.position)
	}
	for i := range img.parts {
		p := &img.parts[i]
		b = append(b[:0], byte(p.tier), byte(p.kind), byte(p.role), 0)
		b = binary.LittleEndian.AppendUint32(b, uint32(p.group))
		b = binary.LittleEndian.AppendUint32(b, uint32(p.window))
		b = binary.LittleEndian.AppendUint32(b, uint32(p.blockSize))
		s.frame(framePart, b)
		b = s.entries(frameItems, &p.rev, b)
	}
	b = s.entries(frameSalts, &img.salts, b)
	s.frame(frameEnd, nil)
	s.buf = b
}

// entries writes a map in frames of pairs of words. Copies beyond a byte's count are left out:
// such a block may be forgotten early.
func (s *snapshotWriter) entries(kind byte, m *revmap, b []byte) []byte {
	b = b[:0]
	m.each(func(name, key *uint64) {
		b = binary.LittleEndian.AppendUint64(b, *name)
		b = binary.LittleEndian.AppendUint64(b, *key)
		if len(b) == 16*frameEntries {
			s.frame(kind, b)
			b = b[:0]
		}
	})
	if len(b) > 0 {
		s.frame(kind, b)
	}
	return b
}
