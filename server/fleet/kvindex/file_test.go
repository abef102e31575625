package kvindex_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// kept returns an index with a snapshot file and one rank, "r".
func kept(t *testing.T, file string, log *bytes.Buffer) *kvindex.Index {
	t.Helper()
	config := kvindex.DefaultConfig()
	config.Snapshot = file
	ix := kvindex.New(config, kvindex.Params{Scope: scope.Logged(slog.New(slog.NewTextHandler(log, nil)))})
	ix.Restore()
	return ix
}

func addNamed(t *testing.T, ix *kvindex.Index, state kvblock.FeedState) {
	t.Helper()
	if err := ix.AddRank(0, kvindex.RankInfo{Rank: replica.Rank{Replica: "r"}, BlockSize: size}); err != nil {
		t.Fatal(err)
	}
	ix.SetState(0, state)
}

// stop runs the index for as long as a stopping router does.
func stop(t *testing.T, ix *kvindex.Index) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ix.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestTheIndexOutlivesARestart(t *testing.T) {
	var log bytes.Buffer
	file := filepath.Join(t.TempDir(), "index")
	ix := kept(t, file, &log)
	addNamed(t, ix, kvblock.FeedExact)
	ev := stored(1, 20)
	ix.Store(0, ev)
	stop(t, ix)

	ix = kept(t, file, &log)
	stop(t, ix) // before its replica was found: nothing may be lost
	ix = kept(t, file, &log)
	addNamed(t, ix, kvblock.FeedCold)
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{GPU: 20})
	ix.Began("r", time.Now().Add(-time.Hour)) // the process of before
	ix.Began("other", time.Now().Add(time.Hour))
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{GPU: 20})
	again := stored(1, 5)
	ix.Store(0, again) // named by an event: a fact
	ix.Began("r", time.Now().Add(time.Hour))
	expect(t, ix, chain(ev.Tokens), kvindex.Overlap{GPU: 5})
	if strings.Contains(log.String(), "level=WARN") {
		t.Errorf("there were warnings:\n%s", log.String())
	}
	files, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(files) != 1 {
		t.Errorf("%d files are left (%v), want the snapshot alone", len(files), err)
	}
}

func TestADamagedFileIsAWarning(t *testing.T) {
	var log bytes.Buffer
	file := filepath.Join(t.TempDir(), "index")
	if err := os.WriteFile(file, []byte("no snapshot at all"), 0o600); err != nil {
		t.Fatal(err)
	}
	ix := kept(t, file, &log)
	addNamed(t, ix, kvblock.FeedExact)
	ix.Store(0, stored(1, 3))
	expect(t, ix, chain(tokens(1, 3)), kvindex.Overlap{GPU: 3})
	if !strings.Contains(log.String(), "incomplete") {
		t.Errorf("the log is %q, want a warning", log.String())
	}
	stop(t, ix) // replaces it
	log.Reset()
	kept(t, file, &log)
	if !strings.Contains(log.String(), "index restored") {
		t.Errorf("the log is %q, want that the index was restored", log.String())
	}
}

func TestAFileThatCannotBeWrittenIsAWarning(t *testing.T) {
	var log bytes.Buffer
	ix := kept(t, filepath.Join(t.TempDir(), "absent", "index"), &log)
	stop(t, ix)
	if !strings.Contains(log.String(), "was not written") {
		t.Errorf("the log is %q, want a warning", log.String())
	}
}

func TestTheFileIsWrittenNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		file := filepath.Join(t.TempDir(), "index")
		ix := kept(t, file, &log)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- ix.Run(ctx) }()
		time.Sleep(4 * time.Minute)
		if _, err := os.Stat(file); !os.IsNotExist(err) {
			t.Errorf("after four minutes: %v, want no file yet", err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if _, err := os.Stat(file); err != nil {
			t.Errorf("after six minutes: %v", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
