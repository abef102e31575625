package vllm_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllm"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllmtest"
)

func tokens(n int) []uint32 {
	list := make([]uint32, n)
	for i := range list {
		list[i] = uint32(i * 977 % 150000)
	}
	return list
}

func decode(t *testing.T, payload []byte) *vllm.Batch {
	t.Helper()
	var d vllm.Decoder
	b, err := d.Decode(payload)
	if err != nil {
		t.Fatalf("Decode(%x) = %v", payload, err)
	}
	return b
}

// one decodes a batch of one event and returns it.
func one(t *testing.T, l vllmtest.Layout, e vllmtest.Event) vllm.Event {
	t.Helper()
	b := decode(t, l.Batch(1, 0, e))
	if len(b.Events) != 1 {
		t.Fatalf("%d events, want 1: %+v", len(b.Events), b)
	}
	return b.Events[0]
}

func TestEveryLayoutGivesTheSameEvents(t *testing.T) {
	ids := tokens(64)
	for _, l := range vllmtest.Layouts() {
		t.Run(l.Name, func(t *testing.T) {
			b := decode(t, l.Batch(1.5, 3,
				vllmtest.Stored([]uint64{1 << 63, 2, 3, 4}, nil, ids, 16),
				vllmtest.Removed(1<<63, 2), vllmtest.Removed(3),
				vllmtest.Stored([]uint64{9}, uint64(4), ids[:32], 32),
				vllmtest.Cleared()))
			if b.Time != 1.5 || b.Rank != 3 || b.Wire != 5 || len(b.Events) != 4 {
				t.Fatalf("batch = %+v", b)
			}
			s, r, c := b.Events[0].Stored, b.Events[1].Removed, b.Events[3]
			if !slices.Equal(s.Hashes, []kvblock.EngineHash{1 << 63, 2, 3, 4}) || s.HasParent || !slices.Equal(s.Tokens, ids) || s.BlockSize != 16 {
				t.Errorf("stored = %+v", s)
			}
			if !slices.Equal(r.Hashes, []kvblock.EngineHash{1 << 63, 2, 3}) {
				t.Errorf("removals were not joined: %+v", r)
			}
			if s := b.Events[2].Stored; !s.HasParent || s.Parent != 4 || !slices.Equal(s.Tokens, ids[:32]) {
				t.Errorf("second stored = %+v", s)
			}
			if c.Op != vllm.OpCleared || c.Tier != kvblock.TierGPU {
				t.Errorf("cleared = %+v", c)
			}
		})
	}
}

func TestRemovalsAreJoinedAsTheyWere(t *testing.T) {
	ids := tokens(16)
	gone := func(h uint64) vllmtest.Event { return vllmtest.Removed(h).With("group_idx", 0) }
	for name, tt := range map[string]struct {
		events []vllmtest.Event
		want   string
		wrong  int // misfits
		fields int // unknown ones
	}{
		"alike":                {events: []vllmtest.Event{gone(1 << 60), gone(2 << 60), gone(3 << 60), gone(4 << 60)}, want: "gpu/0 1 2 3 4"},
		"narrow hashes":        {events: []vllmtest.Event{gone(1 << 60), gone(7), gone(8), gone(3 << 60)}, want: "gpu/0 1 0 0 3"},
		"two hashes":           {events: []vllmtest.Event{gone(1 << 60), vllmtest.Removed(2<<60, 3<<60).With("group_idx", 0), gone(4 << 60), gone(5 << 60)}, want: "gpu/0 1 2 3 4 5"},
		"another tier":         {events: []vllmtest.Event{gone(1 << 60), gone(2 << 60), gone(3<<60).With("medium", "CPU"), gone(4 << 60)}, want: "gpu/0 1 2; cpu/0 3; gpu/0 4"},
		"another group":        {events: []vllmtest.Event{gone(1 << 60), gone(2<<60).With("group_idx", 1), gone(3<<60).With("group_idx", 1)}, want: "gpu/0 1; gpu/1 2 3"},
		"a store between":      {events: []vllmtest.Event{gone(1 << 60), vllmtest.Stored([]uint64{2 << 60}, nil, ids, 16), gone(3 << 60), gone(4 << 60)}, want: "gpu/0 1; stored 2; gpu/0 3 4"},
		"a misfit between":     {events: []vllmtest.Event{gone(1 << 60), vllmtest.Stored([]uint64{2 << 60}, nil, ids, 5), gone(3 << 60), gone(4 << 60)}, want: "gpu/0 1 3 4", wrong: 1},
		"a clear between":      {events: []vllmtest.Event{gone(1 << 60), vllmtest.Cleared(), gone(3 << 60), gone(4 << 60)}, want: "gpu/0 1; cleared; gpu/0 3 4"},
		"removals of nothing":  {events: []vllmtest.Event{vllmtest.Removed(), gone(1 << 60), vllmtest.Removed(), gone(3 << 60)}, want: "gpu/0 1 3"},
		"unknown field, twice": {events: []vllmtest.Event{gone(1<<60).With("new", 1), gone(2<<60).With("new", 1), gone(3 << 60)}, want: "gpu/0 1 2 3", fields: 2},
	} {
		t.Run(name, func(t *testing.T) {
			l := vllmtest.Newest()
			l.Removed = append(slices.Clone(l.Removed), "new")
			b := decode(t, l.Batch(1, 0, tt.events...))
			var got []string
			for _, e := range b.Events {
				switch e.Op {
				case vllm.OpStored:
					got = append(got, fmt.Sprintf("stored %d", e.Stored.Hashes[0]>>60))
				case vllm.OpRemoved:
					s := fmt.Sprintf("%v/%d", e.Removed.Tier, e.Removed.Group)
					for _, h := range e.Removed.Hashes {
						s += fmt.Sprintf(" %d", h>>60)
					}
					got = append(got, s)
				case vllm.OpCleared:
					got = append(got, "cleared")
				}
			}
			if s := strings.Join(got, "; "); s != tt.want || b.Misfits != tt.wrong || b.UnknownFields != tt.fields || b.Wire != len(tt.events) {
				t.Errorf("events %q, %d misfits, %d unknown fields, %d on the wire; want %q, %d, %d, %d",
					s, b.Misfits, b.UnknownFields, b.Wire, tt.want, tt.wrong, tt.fields, len(tt.events))
			}
		})
	}
}

func TestHashForms(t *testing.T) {
	digest := make([]byte, 32)
	for i := range digest {
		digest[i] = byte(i)
	}
	for _, tt := range []struct {
		name string
		wire any
		want kvblock.EngineHash
	}{
		{"small", 5, 5},
		{"unsigned", uint64(0xfedcba9876543210), 0xfedcba9876543210},
		{"signed", int64(-2), 0xfffffffffffffffe},
		{"sha256", digest, 0x18191a1b1c1d1e1f},
		{"xxh3-128", digest[:16], 0x08090a0b0c0d0e0f},
		{"two digests", append(bytes.Repeat([]byte{7}, 32), digest...), 0x18191a1b1c1d1e1f},
		{"short", []byte{1, 2}, 0x0102},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, l := range []vllmtest.Layout{vllmtest.Layouts()[0], vllmtest.Newest()} {
				e := vllmtest.Stored(nil, tt.wire, tokens(8), 8).With("block_hashes", []any{tt.wire})
				if got := one(t, l, e).Stored; got.Hashes[0] != tt.want || got.Parent != tt.want || !got.HasParent {
					t.Errorf("%s: hash = %x, parent %x, want %x", l.Name, got.Hashes[0], got.Parent, tt.want)
				}
				e = vllmtest.Removed().With("block_hashes", []any{tt.wire})
				if got := one(t, l, e).Removed; got.Hashes[0] != tt.want {
					t.Errorf("%s: removed %x, want %x", l.Name, got.Hashes[0], tt.want)
				}
			}
		})
	}
}

func TestTiersGroupsAndLocality(t *testing.T) {
	l := vllmtest.Newest()
	for medium, want := range map[any]kvblock.Tier{
		nil: kvblock.TierGPU, "GPU": kvblock.TierGPU, "gpu": kvblock.TierGPU, "CPU": kvblock.TierCPU, "cpu": kvblock.TierCPU,
		"Cpu_Pinned": kvblock.TierCPU, "STORAGE": kvblock.TierDisk, "FS": kvblock.TierDisk, "obj": kvblock.TierDisk,
		"DISK": kvblock.TierDisk, "EXTERNAL": kvblock.TierDisk, "LMCacheRemoteBackendOnSomething": kvblock.TierDisk, "?": kvblock.TierDisk,
	} {
		if got := one(t, l, vllmtest.Stored([]uint64{1}, nil, tokens(4), 4).With("medium", medium)).Stored.Tier; got != want {
			t.Errorf("stored in %v: tier %v, want %v", medium, got, want)
		}
		if got := one(t, l, vllmtest.Removed(1).With("medium", medium)).Removed.Tier; got != want {
			t.Errorf("removed from %v: tier %v, want %v", medium, got, want)
		}
	}
	for name, want := range map[any]kvblock.Kind{
		nil: kvblock.KindUnknown, "full_attention": kvblock.KindFull, "mla_attention": kvblock.KindFull, "sink_full_attention": kvblock.KindFull,
		"sliding_window": kvblock.KindWindow, "sliding_window_mla": kvblock.KindWindow, "chunked_local_attention": kvblock.KindWindow,
		"mamba": kvblock.KindMamba, "cross_attention": kvblock.KindOther, "encoder_only_attention": kvblock.KindOther, "unknown": kvblock.KindOther, "of_next_year": kvblock.KindOther,
	} {
		e := vllmtest.Stored([]uint64{1}, nil, tokens(4), 4).With("kv_cache_spec_kind", name).With("group_idx", 2).
			With("kv_cache_spec_sliding_window", 4096).With("locality", "REMOTE")
		s := one(t, l, e).Stored
		if s.Kind != want || s.Group != 2 || s.Window != 4096 || !s.Remote {
			t.Errorf("kind %v: %+v, want kind %d in group 2, window 4096, remote", name, s, want)
		}
	}
	if r := one(t, l, vllmtest.Removed(1).With("group_idx", 3).With("locality", "REMOTE")).Removed; r.Group != 3 || !r.Remote {
		t.Errorf("removed = %+v, want group 3, remote", r)
	}
	if s := one(t, l, vllmtest.Stored([]uint64{1}, nil, tokens(4), 4).With("locality", "LOCAL")).Stored; s.Remote || s.Group != kvblock.NoGroup {
		t.Errorf("stored = %+v, want local without a group", s)
	}
}

func TestRemovalsFromDifferentPlacesStayApart(t *testing.T) {
	b := decode(t, vllmtest.Newest().Batch(1, 0,
		vllmtest.Removed(1), vllmtest.Removed(2).With("medium", "CPU"), vllmtest.Removed(3).With("group_idx", 1),
		vllmtest.Removed(4).With("group_idx", 1), vllmtest.Removed(), vllmtest.Removed(5).With("locality", "REMOTE")))
	var got []string
	for _, e := range b.Events {
		got = append(got, fmt.Sprint(e.Removed.Tier, e.Removed.Group, e.Removed.Remote, e.Removed.Hashes))
	}
	want := "gpu -1 false [1],cpu -1 false [2],gpu 1 false [3 4],gpu -1 true [5]"
	if strings.Join(got, ",") != want {
		t.Errorf("removals = %s, want %s", strings.Join(got, ","), want)
	}
}

func TestExtraKeys(t *testing.T) {
	digest := strings.Repeat("0123456789abcdef", 4)
	pair := func(id string, offset int) []any { return []any{id, offset} }
	item := func(id string, offset int) kvblock.Item {
		return kvblock.Item{ID: id, Offset: offset, HasOffset: true}
	}
	type expect struct {
		salt      string
		items     []kvblock.Item // of block 0
		second    []kvblock.Item // of block 1
		ambiguous bool
	}
	for _, tt := range []struct {
		name   string
		layout string // and all later ones, unless only
		only   bool
		parent any
		lora   any
		keys   any
		want   expect
	}{
		{name: "none", layout: "0.18"},
		{name: "nil rows", layout: "0.18", keys: []any{nil, nil}},
		{name: "adapter", layout: "0.18", lora: "a", keys: []any{[]any{"a"}, []any{"a"}}},
		{name: "salt", layout: "0.18", keys: []any{[]any{"s"}, nil}, want: expect{salt: "s"}},
		{name: "salt that looks like a digest", layout: "0.21", keys: []any{[]any{digest}, nil}, want: expect{salt: digest}},
		{name: "pairs", layout: "0.18", keys: []any{[]any{pair("i", 3)}, []any{pair("i", -13), pair("j", 2)}},
			want: expect{items: []kvblock.Item{item("i", 3)}, second: []kvblock.Item{item("i", -13), item("j", 2)}}},
		{name: "pairs not nested", layout: "0.18", keys: []any{nil, []any{"i", -3, "j", 2}}, want: expect{second: []kvblock.Item{item("i", -3), item("j", 2)}}},
		{name: "all", layout: "0.18", lora: "a", keys: []any{[]any{"a", pair("i", 3), "s"}, []any{"a", pair("i", -13)}},
			want: expect{salt: "s", items: []kvblock.Item{item("i", 3)}, second: []kvblock.Item{item("i", -13)}}},
		{name: "adapter and salt of one name", layout: "0.18", lora: "a", keys: []any{[]any{"a", "a"}, []any{"a"}}, want: expect{salt: "a"}},
		{name: "item of 0.18", layout: "0.18", only: true, keys: []any{[]any{digest}, []any{"mine"}},
			want: expect{items: []kvblock.Item{{ID: digest}}, second: []kvblock.Item{{ID: "mine"}}}},
		{name: "item and salt of 0.18", layout: "0.18", only: true, keys: []any{[]any{digest, "s"}, nil}, want: expect{salt: "s", items: []kvblock.Item{{ID: digest}}}},
		{name: "item of 0.18 below a parent", layout: "0.18", only: true, parent: uint64(7), keys: []any{[]any{"mine"}, nil}, want: expect{items: []kvblock.Item{{ID: "mine"}}}},
		{name: "a lone string below a parent", layout: "0.21", parent: uint64(7), keys: []any{[]any{"what"}, nil}, want: expect{items: []kvblock.Item{{ID: "what"}}, ambiguous: true}},
		{name: "prompt embeddings", layout: "0.18", keys: []any{nil, []any{make([]byte, 32)}}, want: expect{ambiguous: true}},
		{name: "a number", layout: "0.18", keys: []any{nil, []any{7}}, want: expect{ambiguous: true}},
		{name: "a triple", layout: "0.18", keys: []any{nil, []any{[]any{"i", 1, 2}}}, want: expect{ambiguous: true}},
		{name: "a pair of something", layout: "0.18", keys: []any{nil, []any{[]any{"i", "j"}}}, want: expect{ambiguous: true}},
		{name: "a row that is no list", layout: "0.18", keys: []any{nil, "i"}, want: expect{ambiguous: true}},
		{name: "rows that do not fit", layout: "0.18", keys: []any{nil}, want: expect{ambiguous: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reached := false
			for _, l := range vllmtest.Layouts() {
				reached = reached || l.Name == tt.layout
				if !reached || tt.only && l.Name != tt.layout {
					continue
				}
				e := vllmtest.Stored([]uint64{1, 2}, tt.parent, tokens(8), 4).With("lora_name", tt.lora).With("extra_keys", tt.keys)
				s := one(t, l, e).Stored
				var rows [2][]kvblock.Item
				copy(rows[:], s.Items)
				if s.Salt != tt.want.salt || s.Ambiguous != tt.want.ambiguous || !slices.Equal(rows[0], tt.want.items) || !slices.Equal(rows[1], tt.want.second) {
					t.Errorf("%s: salt %q items %+v ambiguous %v, want %+v", l.Name, s.Salt, s.Items, s.Ambiguous, tt.want)
				}
			}
			if !reached {
				t.Errorf("no layout %q", tt.layout)
			}
		})
	}
}

func TestPlaceholdersPartialBlocksAndMisfits(t *testing.T) {
	l := vllmtest.Newest()
	placeholder := vllmtest.Stored([]uint64{7}, nil, []uint32{}, 0).With("medium", "CPU")
	if s := one(t, l, placeholder).Stored; len(s.Tokens) != 0 || s.BlockSize != 0 || s.Hashes[0] != 7 || s.Tier != kvblock.TierCPU {
		t.Errorf("placeholder = %+v", s)
	}
	if s := one(t, l, placeholder.With("block_size", 16)).Stored; len(s.Tokens) != 0 || s.BlockSize != 16 {
		t.Errorf("placeholder with a size = %+v", s)
	}
	partial := vllmtest.Stored([]uint64{8}, uint64(7), tokens(5), 5)
	if s := one(t, l, partial).Stored; s.BlockSize != 5 || len(s.Tokens) != 5 {
		t.Errorf("partial = %+v", s)
	}
	for _, tt := range []struct {
		name                 string
		event                vllmtest.Event
		misfits, ofThePrefix int
	}{
		{"a window group spans null blocks", vllmtest.Stored([]uint64{1}, nil, tokens(48), 16).With("group_idx", 1).With("kv_cache_spec_kind", "sliding_window"), 1, 0},
		{"mamba too", vllmtest.Stored([]uint64{1}, nil, tokens(48), 16).With("group_idx", 0).With("kv_cache_spec_kind", "mamba"), 1, 0},
		{"an unnamed second group", vllmtest.Stored([]uint64{1}, nil, tokens(48), 16).With("group_idx", 1), 1, 0},
		{"full attention", vllmtest.Stored([]uint64{1}, nil, tokens(48), 16).With("kv_cache_spec_kind", "full_attention"), 1, 1},
		{"too few tokens", vllmtest.Stored([]uint64{1, 2}, nil, tokens(16), 16), 1, 1},
		{"tokens without a size", vllmtest.Stored([]uint64{1}, nil, tokens(16), 0), 1, 1},
		{"no hashes", vllmtest.Stored([]uint64{}, nil, tokens(16), 16), 0, 0},
	} {
		b := decode(t, l.Batch(1, 0, tt.event, vllmtest.Removed(5)))
		if len(b.Events) != 1 || b.Events[0].Op != vllm.OpRemoved || b.Misfits != tt.misfits || b.PrefixMisfits != tt.ofThePrefix {
			t.Errorf("%s: %+v, want %d misfits, %d of the prefix", tt.name, b, tt.misfits, tt.ofThePrefix)
		}
	}
}

func TestUnknownThingsAreSkippedAndCounted(t *testing.T) {
	newest := vllmtest.Newest()
	known := vllmtest.Stored([]uint64{1}, nil, tokens(4), 4)
	wider := newest
	wider.Stored = append(slices.Clone(newest.Stored), "of_next_year")
	array := vllmtest.Layouts()[5]
	longer := array
	longer.Stored = append(slices.Clone(newest.Stored), "a", "b")
	longer.Removed = append(slices.Clone(newest.Removed), "a")

	b := decode(t, wider.Batch(1, 0, known.With("session_id", "s").With("of_next_year", map[string]any{"x": []any{1, nil}})))
	if b.UnknownFields != 1 || len(b.Events) != 1 {
		t.Errorf("map with new keys: %+v", b)
	}
	b = decode(t, longer.Batch(1, 0, known.With("a", []any{"deep", []any{1}}), vllmtest.Removed(2)))
	if b.UnknownFields != 3 || len(b.Events) != 2 {
		t.Errorf("array with new positions: %+v", b)
	}
	for _, l := range []vllmtest.Layout{array, newest} {
		b = decode(t, l.Batch(1, 0, vllmtest.Event{"type": "BlockInactive"}, known, vllmtest.Cleared()))
		if b.UnknownTags != 1 || len(b.Events) != 2 || b.Wire != 3 {
			t.Errorf("%s: unknown tag: %+v", l.Name, b)
		}
	}
	// Elements after the rank, and a batch without one.
	b = decode(t, slices.Concat([]byte{0x95}, newest.Batch(1, 2)[1:], []byte{0x01, 0xc0}))
	if b.Rank != 2 || b.UnknownFields != 2 {
		t.Errorf("long batch: %+v", b)
	}
	b = decode(t, []byte{0x92, 0x01, 0xc0})
	if b.Rank != -1 || b.Time != 1 || len(b.Events) != 0 {
		t.Errorf("short batch: %+v", b)
	}
}

func TestMapsInAnyOrder(t *testing.T) {
	event := msgp.AppendMapHeader(nil, 3)
	event = vllmtest.Append(vllmtest.Append(event, "medium"), "CPU")
	event = vllmtest.Append(vllmtest.Append(event, "block_hashes"), []uint64{4})
	event = vllmtest.Append(vllmtest.Append(event, "type"), "BlockRemoved")
	batch := msgp.AppendMapHeader(nil, 5)
	batch = vllmtest.Append(vllmtest.Append(batch, "type"), "KVEventBatch")
	batch = vllmtest.Append(vllmtest.Append(batch, "data_parallel_rank"), 6)
	batch = append(vllmtest.Append(batch, "events"), append([]byte{0x91}, event...)...)
	batch = vllmtest.Append(vllmtest.Append(batch, "epoch"), "e")
	batch = vllmtest.Append(vllmtest.Append(batch, "ts"), float32(2))
	b := decode(t, batch)
	if b.Rank != 6 || b.Time != 2 || b.UnknownFields != 1 || len(b.Events) != 1 {
		t.Fatalf("batch = %+v", b)
	}
	if r := b.Events[0].Removed; r.Tier != kvblock.TierCPU || r.Hashes[0] != 4 {
		t.Errorf("event = %+v", r)
	}
}

func TestTokenWidths(t *testing.T) {
	ids := []any{0, 127, 128, 255, 256, 65535, 65536, uint64(1<<32 - 1), int64(77), -1}
	e := vllmtest.Stored([]uint64{1}, nil, nil, len(ids)).With("token_ids", ids)
	s := one(t, vllmtest.Newest(), e).Stored
	want := []uint32{0, 127, 128, 255, 256, 65535, 65536, 1<<32 - 1, 77, 1<<32 - 1}
	if !slices.Equal(s.Tokens, want) || !s.Ambiguous {
		t.Errorf("tokens = %d ambiguous %v, want %d and ambiguous for -1", s.Tokens, s.Ambiguous, want)
	}
}

func TestRefuses(t *testing.T) {
	good := vllmtest.Newest().Batch(1, 0, vllmtest.Stored([]uint64{1}, nil, tokens(4), 4))
	stored := vllmtest.Stored([]uint64{1}, nil, tokens(4), 4)
	bad := func(field string, value any) []byte {
		return vllmtest.Newest().Batch(1, 0, stored.With(field, value))
	}
	for name, payload := range map[string][]byte{
		"nothing":             nil,
		"a string":            []byte("\xa5hello"),
		"an empty array":      {0x90},
		"a map of nothing":    {0x80},
		"bytes after the end": append(slices.Clone(good), 0),
		"nil hash":            bad("block_hashes", []any{nil}),
		"float hash":          bad("block_hashes", []any{1.5}),
		"empty hash":          bad("block_hashes", []any{[]byte{}}),
		"hashes no list":      bad("block_hashes", "x"),
		"tokens no list":      bad("token_ids", 5),
		"token no number":     bad("token_ids", []any{"x", 1, 2, 3}),
		"negative block size": bad("block_size", -4),
		"huge block size":     bad("block_size", int64(1)<<40),
		"medium no string":    bad("medium", 5),
		"event no container":  {0x92, 0x01, 0x91, 0x05},
		"event of nothing":    {0x92, 0x01, 0x91, 0x90},
		"event without tag":   {0x92, 0x01, 0x91, 0x81, 0xa1, 'x', 0x01},
		"hostile array":       {0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff},
		"hostile map":         {0x92, 0x01, 0x91, 0xdf, 0xff, 0xff, 0xff, 0xff},
		"deep":                append([]byte{0x93, 0x01}, bytes.Repeat([]byte{0x91}, 1<<20)...),
	} {
		var d vllm.Decoder
		if b, err := d.Decode(payload); !errors.Is(err, vllm.ErrPayload) || b != nil {
			t.Errorf("%s: Decode() = %+v, %v, want ErrPayload", name, b, err)
		}
	}
	var d vllm.Decoder
	for n := range good {
		if _, err := d.Decode(good[:n]); err == nil {
			t.Errorf("cut after %d bytes: no error", n)
		}
	}
}

func TestManyEventsAreBounded(t *testing.T) {
	cleared := vllmtest.Layouts()[0].Batch(1, 0, vllmtest.Cleared())
	event := cleared[len(cleared)-19 : len(cleared)-1]
	payload := append([]byte{0x92, 0x01, 0xdd, 0, 8, 0, 0}, bytes.Repeat(event, 1<<19)...)
	var d vllm.Decoder
	if _, err := d.Decode(payload); !errors.Is(err, vllm.ErrPayload) || !strings.Contains(err.Error(), "more than") {
		t.Errorf("Decode() of 524288 events = %v", err)
	}
}

func steady(layout vllmtest.Layout, hashes bool) []byte {
	var list []any
	for i := range 16 {
		if hashes {
			list = append(list, bytes.Repeat([]byte{byte(i)}, 32))
		} else {
			list = append(list, uint64(i)<<56|0x1234)
		}
	}
	keys := make([]any, 16)
	for i := range keys {
		keys[i] = []any{"adapter", []any{"0123", 16 * i}}
	}
	e := vllmtest.Stored(nil, list[0], tokens(256), 16).With("block_hashes", list).With("lora_name", "adapter").With("group_idx", 0)
	return layout.Batch(1.7e9, 0, e, e.With("extra_keys", keys), vllmtest.Removed(1), vllmtest.Removed(2))
}

func TestDecodeAllocatesNothing(t *testing.T) {
	for _, l := range []vllmtest.Layout{vllmtest.Layouts()[5], vllmtest.Newest()} {
		payload := steady(l, true)
		var d vllm.Decoder
		allocs := testing.AllocsPerRun(100, func() {
			if _, err := d.Decode(payload); err != nil {
				t.Fatal(err)
			}
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations per batch", l.Name, allocs)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, l := range []vllmtest.Layout{vllmtest.Layouts()[0], vllmtest.Layouts()[5], vllmtest.Newest()} {
		f.Add(l.Batch(1, nil, vllmtest.Stored([]uint64{1, 2}, uint64(3), tokens(8), 4), vllmtest.Removed(1, 2), vllmtest.Cleared()))
		f.Add(l.Batch(1, 0, vllmtest.Stored([]uint64{1}, nil, tokens(4), 4).With("extra_keys", []any{[]any{"a", []any{"i", 1}, "s"}})))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		var d vllm.Decoder
		b, err := d.Decode(payload)
		if err != nil {
			if !errors.Is(err, vllm.ErrPayload) {
				t.Fatalf("error of an unknown kind: %v", err)
			}
			return
		}
		for _, e := range b.Events {
			s := e.Stored
			if e.Op == vllm.OpStored && len(s.Tokens) > 0 && len(s.Tokens) != len(s.Hashes)*s.BlockSize {
				t.Fatalf("%d tokens for %d blocks of %d", len(s.Tokens), len(s.Hashes), s.BlockSize)
			}
			if e.Op == vllm.OpStored && s.Items != nil && len(s.Items) != len(s.Hashes) {
				t.Fatalf("%d rows of items for %d blocks", len(s.Items), len(s.Hashes))
			}
			if e.Op == vllm.OpRemoved && len(e.Removed.Hashes) == 0 {
				t.Fatal("a removal of nothing")
			}
		}
		events := len(b.Events)
		if again, err := d.Decode(payload); err != nil || len(again.Events) != events {
			t.Fatalf("second Decode differs: %v", err)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	for _, l := range []vllmtest.Layout{vllmtest.Layouts()[5], vllmtest.Newest()} {
		for name, payload := range map[string][]byte{"uint64": steady(l, false), "bytes": steady(l, true)} {
			b.Run(l.Name+"/"+name, func(b *testing.B) {
				var d vllm.Decoder
				b.ReportAllocs()
				for b.Loop() {
					if _, err := d.Decode(payload); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*34), "ns/block")
			})
		}
	}
}

// TestFieldsOfVLLM033: with speculation each block's hash covers the tokens behind it too, and a tier
// may have an owner; neither is an unknown field, and whatever shape the lists have is read in bounds.
func TestFieldsOfVLLM033(t *testing.T) {
	ahead := []any{[]any{7, 8}, []any{9}}
	e := vllmtest.Stored([]uint64{1, 2}, nil, tokens(8), 4).With("lookahead_token_ids", ahead).With("ownership", "mooncake").With("session_id", "s")
	array := vllmtest.Newest()
	array.Map = false // no release sends arrays of this length; a fork may
	for _, l := range []vllmtest.Layout{vllmtest.Newest(), array} {
		b := decode(t, l.Batch(1, 0, e, vllmtest.Removed(1).With("ownership", "mooncake")))
		if b.UnknownFields+b.UnknownTags+b.Misfits != 0 || len(b.Events) != 2 {
			t.Errorf("batch = %+v", b)
		}
		if got := b.Events[0].Stored.Lookahead; got != 2 {
			t.Errorf("lookahead = %d, want 2", got)
		}
	}
	if got := one(t, vllmtest.Newest(), e.With("lookahead_token_ids", nil)).Stored.Lookahead; got != 0 {
		t.Errorf("lookahead of nil = %d", got)
	}
	var d vllm.Decoder
	for _, odd := range []any{"x", 5, []any{5}, []any{"ab"}} {
		if _, err := d.Decode(vllmtest.Newest().Batch(1, 0, e.With("lookahead_token_ids", odd))); !errors.Is(err, vllm.ErrPayload) {
			t.Errorf("lookahead_token_ids of %v: error %v", odd, err)
		}
	}
}

// TestParentZeroIsARoot: llm-d-inference-sim writes the parent of a prompt's first block as 0.
func TestParentZeroIsARoot(t *testing.T) {
	for _, l := range vllmtest.Layouts() {
		if s := one(t, l, vllmtest.Stored([]uint64{5}, uint64(0), tokens(4), 4)).Stored; s.HasParent {
			t.Errorf("%s: parent %d of a root", l.Name, s.Parent)
		}
	}
}
