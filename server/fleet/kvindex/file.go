package kvindex

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Restore loads the file that Config.Snapshot names, when there is one. It is called once, before
// the feeds begin: a rank that has content of its own keeps that. A damaged file is logged, and its complete parts are taken;
// the index works without.
func (s *snapshots) Restore() {
	name := s.ix.config.Snapshot
	if name == "" {
		return
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		s.ix.log.Info("no snapshot of the index yet", "file", name)
		return
	}
	if err != nil {
		s.ix.log.Warn("the snapshot of the index cannot be read", "error", err)
		return
	}
	defer f.Close()
	begin := time.Now()
	got, err := s.Load(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		s.ix.log.Warn("the snapshot of the index is incomplete", "file", name, "ranks", got.Ranks, "blocks", got.Blocks, "error", err)
		return
	}
	s.ix.log.Info("index restored", "file", name, "ranks", got.Ranks, "blocks", got.Blocks, "took", time.Since(begin).Round(time.Millisecond))
}

// save writes the snapshot to a new file next to the old one, which it replaces once it is complete and on disk.
func (s *snapshots) save() {
	name := s.ix.config.Snapshot
	if name == "" {
		return
	}
	begin := time.Now()
	if err := s.replace(name); err != nil {
		s.ix.log.Warn("the snapshot of the index was not written", "file", name, "error", err)
		return
	}
	s.ix.log.Debug("index saved", "file", name, "took", time.Since(begin).Round(time.Millisecond))
}

func (s *snapshots) replace(name string) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.tmp")
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = s.Snapshot(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", name, err), os.Remove(f.Name()))
	}
	return nil
}

// Began notes when a replica's engine process began. Blocks that an older snapshot brought and no event has named are another process's:
// they are forgotten.
func (s *snapshots) Began(id replica.ID, began time.Time) {
	for _, r := range s.ix.all() {
		if r == nil || r.info.Rank.Replica != id {
			continue
		}
		r.mu.Lock()
		if r.loaded && !r.gone && began.After(r.taken) {
			r.loaded = false
			r.dropGuesses()
		}
		r.mu.Unlock()
	}
}
