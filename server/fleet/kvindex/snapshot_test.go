package kvindex_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"testing/iotest"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// named returns an index of n ranks with names, each of which holds its own and shared prompts.
func named(t testing.TB, n int, fill bool) *kvindex.Index {
	t.Helper()
	config := kvindex.DefaultConfig()
	config.MaxBytes = 1 << 20
	ix := kvindex.New(config, kvindex.Params{})
	for slot := range replica.Slot(n) {
		info := kvindex.RankInfo{Rank: replica.Rank{Replica: replica.ID(fmt.Sprint("r", slot))}}
		if err := ix.AddRank(slot, info); err != nil {
			t.Fatal(err)
		}
		ix.SetState(slot, kvblock.FeedCold)
		if !fill {
			continue
		}
		ix.Store(slot, stored(1, 30+int(slot)))
		ix.Store(slot, stored(100+uint32(slot), 50))
		salted := stored(200, 10)
		salted.Salt = "tenant"
		ix.Store(slot, salted)
		cpu := *stored(1, 60)
		cpu.Tier = kvblock.TierCPU
		ix.Store(slot, &cpu)
	}
	return ix
}

func write(t testing.TB, ix *kvindex.Index) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := ix.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSnapshotsBringEverythingBack(t *testing.T) {
	from := named(t, 5, true)
	file := write(t, from)
	for name, load := range map[string]func(*kvindex.Index) (*kvindex.Index, kvindex.Loaded, error){
		"ranks known": func(*kvindex.Index) (*kvindex.Index, kvindex.Loaded, error) {
			ix := named(t, 5, false)
			l, err := ix.Load(iotest.OneByteReader(bytes.NewReader(file)))
			return ix, l, err
		},
		"ranks come later": func(*kvindex.Index) (*kvindex.Index, kvindex.Loaded, error) {
			ix := named(t, 0, false)
			l, err := ix.Load(bytes.NewReader(file))
			if l.Parked != 5 || ix.Stats().Parked != 5 {
				t.Errorf("%d ranks parked, want 5", l.Parked)
			}
			for slot := range replica.Slot(5) {
				if err := ix.AddRank(slot, kvindex.RankInfo{Rank: replica.Rank{Replica: replica.ID(fmt.Sprint("r", slot))}}); err != nil {
					t.Fatal(err)
				}
			}
			return ix, l, err
		},
	} {
		ix, l, err := load(nil)
		if err != nil || l.Ranks != 5 || l.Blocks != from.Stats().Blocks {
			t.Fatalf("%s: Load() = %+v, %v, want 5 ranks and %d blocks", name, l, err, from.Stats().Blocks)
		}
		for _, prompt := range [][]blockhash.Hash{
			chain(tokens(1, 60)), chain(tokens(103, 50)), blockhash.Chain(nil, tokens(200, 10), size, blockhash.Namespace{Salt: "tenant"}),
		} {
			expect(t, ix, prompt, match(from, prompt)...)
		}
		if got, want := ix.Stats(), from.Stats(); got.Held != want.Held || got.Blocks != want.Blocks || got.Parked != 0 {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		// Salts live on: a continuation of a salted prompt is keyed with it.
		salted := stored(200, 10)
		ix.Store(0, &kvblock.Stored{Hashes: names(300, 1), Parent: salted.Hashes[9], HasParent: true, Tokens: tokens(300, 1), BlockSize: size})
		long := blockhash.Chain(nil, append(tokens(200, 10), tokens(300, 1)...), size, blockhash.Namespace{Salt: "tenant"})
		if got := match(ix, long)[0]; got.GPU != 11 {
			t.Errorf("%s: %d blocks after a continuation, want 11", name, got.GPU)
		}
		for slot := range replica.Slot(5) {
			ix.RemoveRank(slot)
		}
		if s := ix.Stats(); s.Blocks != 0 || s.Held != [kvblock.Tiers]int64{} {
			t.Errorf("%s: %+v remains", name, s)
		}
	}
}

func TestSnapshotsDoNotReplaceFacts(t *testing.T) {
	file := write(t, named(t, 2, true))
	ix := named(t, 2, false)
	ix.Store(0, stored(9, 3))
	l, err := ix.Load(bytes.NewReader(file))
	if err != nil || l.Ranks != 1 || l.Skipped != 1 {
		t.Fatalf("Load() = %+v, %v, want one rank taken and one skipped", l, err)
	}
	expect(t, ix, chain(tokens(1, 30)), kvindex.Overlap{Slot: 1, GPU: 30})
	expect(t, ix, chain(tokens(9, 3)), kvindex.Overlap{GPU: 3})
}

func TestParkedRanksAreForgotten(t *testing.T) {
	ix := named(t, 0, false)
	if _, err := ix.Load(bytes.NewReader(write(t, named(t, 3, true)))); err != nil {
		t.Fatal(err)
	}
	ix.Expire(time.Now().Add(time.Hour))
	if s := ix.Stats(); s.Parked != 0 || s.Blocks != 0 {
		t.Errorf("%d ranks and %d blocks are still parked", s.Parked, s.Blocks)
	}
}

func TestBrokenSnapshotsGiveWhatIsWhole(t *testing.T) {
	file := write(t, named(t, 3, true))
	for cut := range len(file) {
		if cut%41 != 0 && cut > 64 {
			continue
		}
		ix := named(t, 3, false)
		l, err := ix.Load(bytes.NewReader(file[:cut]))
		if !errors.Is(err, kvindex.ErrSnapshot) {
			t.Fatalf("cut at %d: error %v, want ErrSnapshot", cut, err)
		}
		if got := ix.Stats().Blocks; got != l.Blocks {
			t.Fatalf("cut at %d: %d blocks, said %d", cut, got, l.Blocks)
		}
		for _, r := range ix.Stats().Ranks {
			if r.Blocks[0] != 0 && r.Blocks[1] != 60 {
				t.Fatalf("cut at %d: a rank was taken by half: %+v", cut, r)
			}
		}
	}
	for at := 0; at < len(file); at += 61 {
		broken := bytes.Clone(file)
		broken[at] ^= 0x10
		ix := named(t, 3, false)
		if _, err := ix.Load(bytes.NewReader(broken)); !errors.Is(err, kvindex.ErrSnapshot) {
			t.Fatalf("bit flipped at %d: error %v, want ErrSnapshot", at, err)
		}
	}
	failing := errors.New("disk on fire")
	if _, err := named(t, 3, false).Load(iotest.ErrReader(failing)); !errors.Is(err, failing) {
		t.Errorf("a reader's error became %v", err)
	}
}

// FuzzLoad makes frames with right checksums out of whatever it is given.
func FuzzLoad(f *testing.F) {
	file := write(f, named(f, 2, true))
	f.Add(file[8:], false)
	f.Add(file, true)
	f.Add([]byte{4, 8, 1, 0, 0, 0, 4, 0, 0, 0, 'r', '0'}, false)
	f.Fuzz(func(t *testing.T, data []byte, raw bool) {
		if !raw {
			data = reframe(data)
		}
		ix := named(t, 2, false)
		_, _ = ix.Load(bytes.NewReader(data)) // whether it is refused is not the question
		ix.Match(nil, chain(tokens(1, 60)))
		for slot := range replica.Slot(2) {
			ix.Store(slot, stored(1, 40))
			ix.Remove(slot, &kvblock.Removed{Hashes: stored(1, 40).Hashes})
			ix.SetState(slot, kvblock.FeedExact)
			ix.RemoveRank(slot)
		}
		ix.Expire(time.Now().Add(time.Hour))
		if s := ix.Stats(); s.Blocks != 0 || s.Held != [kvblock.Tiers]int64{} || s.Sets != 0 {
			t.Errorf("%+v remains after all ranks are gone", s)
		}
	})
}

// reframe reads kind, length and body out of data as a snapshot has them and gives each frame the
// checksum that fits.
func reframe(data []byte) []byte {
	out := []byte("KVPIDX01")
	for len(data) >= 5 {
		n := min(int(binary.LittleEndian.Uint32(data)), len(data)-5)
		if n < 0 {
			n = 0
		}
		kind, body := data[4], data[5:5+n]
		out = binary.LittleEndian.AppendUint32(out, uint32(n))
		out = append(append(out, kind), body...)
		out = binary.LittleEndian.AppendUint64(out, xxh3.HashSeed(body, uint64(kind)))
		data = data[min(5+n+8, len(data)):]
	}
	return out
}
