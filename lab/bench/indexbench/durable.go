package indexbench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// reset measures how long one rank of 40,000 blocks takes to forget, during lookups.
func (b *bench) reset(context.Context) error {
	slot := replica.Slot(b.Ranks)
	if err := b.addRank(b.ix, b.Ranks); err != nil {
		return err
	}
	var done atomic.Bool
	var l lap
	finished := make(chan struct{})
	best := time.Duration(1 << 62)
	for range 3 {
		ev := kvblock.Stored{BlockSize: blockTokens}
		for i := range resetBlocks {
			ev.Hashes = append(ev.Hashes, kvblock.EngineHash(i+1))
		}
		ev.Tokens = make([]uint32, resetBlocks*blockTokens)
		for i := range ev.Tokens {
			ev.Tokens[i] = 3_000_000_000 + uint32(i)
		}
		b.ix.Store(slot, &ev)
		go func() {
			l = b.look(6, done.Load)
			finished <- struct{}{}
		}()
		begin := time.Now()
		b.ix.Reset(slot)
		best = min(best, time.Since(begin))
		done.Store(true)
		<-finished
		done.Store(false)
	}
	b.ix.RemoveRank(slot)
	b.result.Reset, b.result.ResetBlocks = best.Seconds()*1e3, resetBlocks
	b.result.ResetMaxStall = l.at(1) / 1e3
	return nil
}

// snapshot writes the index to a file and loads it into a new one.
func (b *bench) snapshot(context.Context) error {
	dir, err := os.MkdirTemp(b.Dir, "kvpilot-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "index")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	begin := time.Now()
	w := bufio.NewWriterSize(f, 1<<20)
	if err := b.ix.Snapshot(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	b.result.SnapshotWrite = time.Since(begin).Seconds()
	if info, err := f.Stat(); err == nil {
		b.result.SnapshotBytes = info.Size()
	}
	held := b.ix.Stats().Held
	want, err := b.answers()
	if err != nil {
		return err
	}
	b.ix = nil // two indexes need not fit
	fresh := b.newIndex()
	for slot := range b.Ranks {
		if err := b.addRank(fresh, slot); err != nil {
			return err
		}
		fresh.SetState(replica.Slot(slot), kvblock.FeedCold)
	}
	if _, err := f.Seek(0, 0); err != nil {
		return err
	}
	begin = time.Now()
	if _, err := fresh.Load(f); err != nil {
		return err
	}
	b.result.SnapshotLoad = time.Since(begin).Seconds()
	if got := fresh.Stats().Held; got != held {
		return fmt.Errorf("the snapshot brought %d blocks, want %d", got, held)
	}
	return want.check(fresh)
}

// answers are prompts with an index's answers about them.
type answers struct {
	prompts  [][]blockhash.Hash
	overlaps [][]kvindex.Overlap
}

// answers asks the index for the held-out prompts and for those played last: the writes of the phases before may have
// evicted all that the former match.
func (b *bench) answers() (*answers, error) {
	const recent = 512
	a := &answers{prompts: slices.Clone(b.prompts)}
	for n := max(0, b.next-recent); n < b.next; n++ {
		a.prompts = append(a.prompts, b.fleet.hashes(nil, n))
	}
	matched := false
	for _, p := range a.prompts {
		o := ask(b.ix, p)
		matched = matched || len(o) > 0
		a.overlaps = append(a.overlaps, o)
	}
	if !matched {
		return nil, errors.New("no prompt matches before the snapshot is written: it cannot be checked")
	}
	return a, nil
}

// check makes sure that a loaded index answers the same: a figure for one that does not is worthless.
func (a *answers) check(ix *kvindex.Index) error {
	for i, p := range a.prompts {
		if got := ask(ix, p); !slices.Equal(got, a.overlaps[i]) {
			return fmt.Errorf("the loaded index says %v of a prompt, want %v", got, a.overlaps[i])
		}
	}
	return nil
}

// ask returns the overlaps of a prompt by slot.
func ask(ix *kvindex.Index, prompt []blockhash.Hash) []kvindex.Overlap {
	list := ix.Match(nil, prompt)
	slices.SortFunc(list, func(a, b kvindex.Overlap) int { return int(a.Slot) - int(b.Slot) })
	return list
}
