package tokenizer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// longBody is a prompt of some 60,000 tokens that no other number has.
func longBody(i int) string {
	return fmt.Sprintf(`{"prompt":%q}`, fmt.Sprint(i, " ", strings.Repeat(fmt.Sprint(i, " fox, "), 20_000)))
}

// keeping encodes a prompt of which the ids are read as long as it is in flight.
func keeping(t *testing.T, p *tokenizer.Pool, body string, keep int, replicas ...*replica.Replica) *tokenizer.Encoding {
	t.Helper()
	req := request(read(t, body), replicas...)
	req.Keep = keep
	enc, err := p.Encode(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return enc
}

// Requests in flight that each hold long ids of their own took more memory than a small container has.
func TestRequestsHoldNoMoreThanThereIsRoomFor(t *testing.T) {
	cfg := tokenizer.DefaultConfig()
	cfg.HeldBytes, cfg.CacheBytes = 1<<20, 1<<20
	pool, r := start(t, cfg), serve(t, "a", &simulated{render: true})
	var held []*tokenizer.Encoding
	withIDs, without, refused := 0, 0, 0
	for i := range 60 {
		enc := keeping(t, pool, longBody(i), 1<<20, r)
		switch {
		case enc.Reason == tokenizer.ReasonMemory:
			if refused++; enc.Tokens < 20_000 || enc.Known() > 0 {
				t.Errorf("without room there are %d ids of a prompt of %d tokens", enc.Known(), enc.Tokens)
			}
			enc.Release()
			continue
		case len(enc.IDs) > 0:
			withIDs++
		default:
			without++
		}
		if blocks := enc.Hashes(16, blockhash.Namespace{}); len(blocks) != enc.Known()/16 || len(blocks) < 1000 {
			t.Errorf("%d blocks of %d tokens are named", len(blocks), enc.Known())
		}
		held = append(held, enc)
	}
	if withIDs == 0 || without < 10 || refused == 0 {
		t.Fatalf("%d prompts found room for their ids, %d for their blocks' names, %d for nothing", withIDs, without, refused)
	}
	if n := pool.Held(); n > int64(cfg.HeldBytes) {
		t.Errorf("%d bytes are held, the limit is %d", n, cfg.HeldBytes)
	}
	for _, enc := range held {
		enc.Release()
		enc.Release()
	}
	if n := pool.Held(); n != 0 {
		t.Errorf("%d bytes are held after all requests have ended", n)
	}
	if enc := keeping(t, pool, longBody(99), 1<<20, r); enc.Reason != "" || len(enc.IDs) == 0 {
		t.Errorf("after all requests have ended there are %d ids (%s)", len(enc.IDs), enc.Reason)
	}
	var none *tokenizer.Encoding
	none.Release()
}

// The names of blocks are those of the ids that were let go, and short prompts keep their ids.
func TestARequestInFlightHoldsItsBlocksNamesAlone(t *testing.T) {
	pool, r := start(t, tokenizer.DefaultConfig()), serve(t, "a", &simulated{render: true})
	ns := blockhash.Namespace{Salt: "s"}
	whole := keeping(t, pool, longBody(1), 1<<20, r)
	want := blockhash.Chain(nil, whole.IDs, 16, ns)
	whole.Hashes(16, ns) // the model's blocks have 16 tokens
	before := pool.Held()
	req := request(read(t, longBody(2)), r)
	req.Keep, req.Namespace = 0, ns
	enc, err := pool.Encode(t.Context(), req)
	if err != nil || len(enc.IDs) > 0 || enc.Known() < 20_000 || enc.Longest() != enc.Known() || !enc.Exact {
		t.Fatalf("%d ids of %d known are held, the longest prompt has %d, %v", len(enc.IDs), enc.Known(), enc.Longest(), err)
	}
	if cost := int(pool.Held() - before); cost > enc.Known()/2+16<<10 {
		t.Errorf("%d tokens cost %d bytes, want half a byte each", enc.Known(), cost)
	}
	again := request(read(t, longBody(1)), r)
	again.Keep, again.Namespace = 0, ns
	if enc, err = pool.Encode(t.Context(), again); err != nil || len(enc.IDs) > 0 {
		t.Fatalf("%d ids are held, %v", len(enc.IDs), err)
	}
	if got := enc.Hashes(16, ns); !slices.Equal(got, want) {
		t.Errorf("the names of %d blocks differ from those of the ids", len(got))
	}
	if short := keeping(t, pool, `{"prompt":"The quick brown fox"}`, 0, r); len(short.IDs) == 0 {
		t.Error("a short prompt has no ids")
	}
}

// A caller that keeps ids itself finds room for them, or not.
func TestRoomForIDsIsReserved(t *testing.T) {
	cfg := tokenizer.DefaultConfig()
	cfg.HeldBytes = 1 << 20
	pool, r := start(t, cfg), serve(t, "a", &simulated{render: true})
	first, second, third := keeping(t, pool, longBody(1), 0, r), keeping(t, pool, longBody(2), 0, r), keeping(t, pool, longBody(3), 0, r)
	for range 2 { // the second time reserves nothing more
		if !first.Reserve() || second.Reserve() {
			t.Fatal("there is room for the ids of another number of prompts than one")
		}
	}
	first.Release()
	if !third.Reserve() {
		t.Error("a reservation outlives its request")
	}
	second.Release()
	third.Release()
	if n := pool.Held(); n != 0 {
		t.Errorf("%d bytes are held after all requests have ended", n)
	}
}

// What a client gave as ids is let go as well.
func TestGivenIDsAreLetGo(t *testing.T) {
	pool := start(t, tokenizer.DefaultConfig())
	ids := make([]uint32, 20_000)
	for i := range ids {
		ids[i] = uint32(i)
	}
	keeping(t, pool, `{"prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}`, 0).Hashes(16, blockhash.Namespace{})
	body := fmt.Sprintf(`{"prompt":%s}`, strings.ReplaceAll(fmt.Sprint(ids), " ", ","))
	enc := keeping(t, pool, body, 0)
	if len(enc.IDs) > 0 || enc.Known() != len(ids) || !slices.Equal(enc.Hashes(16, blockhash.Namespace{}), blockhash.Chain(nil, ids, 16, blockhash.Namespace{})) {
		t.Errorf("%d of %d ids are held, or their blocks are named otherwise", len(enc.IDs), enc.Known())
	}
}
