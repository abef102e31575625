package blockhash_test

import (
	"slices"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// The vectors are those of Dynamo's published scheme (block size 4, no adapter, no salt).
func TestChainMatchesThePublishedVectors(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}
	got := blockhash.Chain(nil, tokens, 4, blockhash.Namespace{})
	want := []blockhash.Hash{14643705804678351452, 4945711292740353085, 12583592247330656132}
	if !slices.Equal(got, want) {
		t.Fatalf("Chain() = %d, want %d", got, want)
	}
	if local := blockhash.Local(tokens[4:8], 1337); local != 16777012769546811212 {
		t.Errorf("Local(5..8) = %d, want 16777012769546811212", local)
	}
}

func TestNamespacesAreSeparate(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4}
	seen := map[blockhash.Hash]blockhash.Namespace{}
	for _, ns := range []blockhash.Namespace{{}, {Adapter: "a"}, {Salt: "a"}, {Adapter: "a", Salt: "a"}, {Adapter: "b"}, {Salt: "b"}} {
		h := blockhash.Chain(nil, tokens, 4, ns)[0]
		if other, dup := seen[h]; dup {
			t.Errorf("%+v and %+v share the hash %d", ns, other, h)
		}
		seen[h] = ns
	}
}

func TestExtendContinuesAChain(t *testing.T) {
	tokens := make([]uint32, 64)
	for i := range tokens {
		tokens[i] = uint32(i * 7)
	}
	ns := blockhash.Namespace{Adapter: "x", Salt: "y"}
	whole := blockhash.Chain(nil, tokens, 8, ns)
	first := blockhash.Chain(nil, tokens[:24], 8, ns)
	rest := blockhash.Extend(nil, first[2], tokens[24:], 8, ns.Seed())
	if got := append(first, rest...); !slices.Equal(got, whole) {
		t.Errorf("chain in two parts = %d, want %d", got, whole)
	}
}

func TestItemsEnterTheBlocksTheyOverlap(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	ns := blockhash.Namespace{}
	plain := blockhash.Chain(nil, tokens, 4, ns)
	cat := blockhash.ChainItems(nil, tokens, 4, ns, []blockhash.Item{{ID: "cat", Start: 5, End: 9}})
	if cat[0] != plain[0] || cat[1] == plain[1] || cat[2] == plain[2] {
		t.Errorf("hashes %d with an item in blocks 1 and 2, %d without", cat, plain)
	}
	// The definition, by itself: the id's hash follows the tokens.
	local := blockhash.LocalWith(tokens[4:8], 1337, []string{"cat"})
	if want := blockhash.Next(plain[0], local); cat[1] != want {
		t.Errorf("second block %d, want %d", cat[1], want)
	}
	if got, want := blockhash.LocalWith(tokens[:4], 1337, nil), blockhash.Local(tokens[:4], 1337); got != want {
		t.Errorf("without items %d, want %d", got, want)
	}
	for name, items := range map[string][]blockhash.Item{
		"another id":  {{ID: "dog", Start: 5, End: 9}},
		"two items":   {{ID: "cat", Start: 5, End: 6}, {ID: "dog", Start: 6, End: 7}},
		"other order": {{ID: "dog", Start: 5, End: 6}, {ID: "cat", Start: 6, End: 7}},
	} {
		if got := blockhash.ChainItems(nil, tokens, 4, ns, items); got[1] == cat[1] {
			t.Errorf("%s: the same hash", name)
		}
	}
	if got := blockhash.ChainItems(nil, tokens, 4, ns, nil); !slices.Equal(got, plain) {
		t.Errorf("no items: %d, want %d", got, plain)
	}
}

func BenchmarkChain128kTokens(b *testing.B) {
	tokens := make([]uint32, 131072)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	dst := make([]blockhash.Hash, 0, 8192)
	b.ReportAllocs()
	for b.Loop() {
		dst = blockhash.Chain(dst[:0], tokens, 16, blockhash.Namespace{})
	}
}
