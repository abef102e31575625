package indexbench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

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
	return checkSame(fresh, b)
}

// checkSame makes sure that the loaded index answers: a figure for one that does not is worthless.
func checkSame(ix *kvindex.Index, b *bench) error {
	best := 0
	for _, p := range b.prompts {
		lead := uint32(0)
		for _, o := range ix.Match(nil, p) {
			lead = max(lead, o.GPU)
		}
		best += int(lead)
	}
	if best == 0 && b.result.BestMatch > 0 {
		return fmt.Errorf("the loaded index matches nothing")
	}
	return nil
}
