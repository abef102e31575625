package load_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

func names(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = "request-" + strconv.Itoa(i)
	}
	return list
}

// A request of 8,192 tokens whose first half another live request shares.
func BenchmarkReserveRelease(b *testing.B) {
	book := newBook(b, 64)
	hashes := make([]blockhash.Hash, 512)
	for i := range hashes {
		hashes[i] = blockhash.Hash(i + 1)
	}
	for slot := range replica.Slot(64) {
		mustReserve(b, book, load.Request{ID: "other" + strconv.Itoa(int(slot)), Slot: slot, PromptTokens: 4096, BlockSize: 16, Hashes: hashes[:256]})
	}
	ids := names(1 << 16)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		r, err := book.Reserve(load.Request{
			ID: ids[i&(1<<16-1)], Attempt: uint32(i >> 16), Slot: replica.Slot(i & 63), PromptTokens: 8192, PrefillTokens: 4096,
			PrefillTime: time.Second, Hashes: hashes, BlockSize: 16, ExpectedTokens: 100,
		})
		if err != nil {
			b.Fatal(err)
		}
		r.Release()
		i++
	}
}

func BenchmarkReserveReleaseParallel(b *testing.B) {
	book := newBook(b, 64)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		ids := names(1 << 12)
		prefix := strconv.FormatInt(time.Now().UnixNano(), 36)
		for i := range ids {
			ids[i] = prefix + ids[i]
		}
		for i := 0; pb.Next(); i++ {
			r, err := book.Reserve(load.Request{ID: ids[i&(1<<12-1)], Attempt: uint32(i >> 12), Slot: replica.Slot(i & 63), PromptTokens: 8192, PrefillTokens: 4096, BlockSize: 16})
			if err != nil {
				b.Error(err)
				return
			}
			r.Release()
		}
	})
}

func BenchmarkView(b *testing.B) {
	book := newBook(b, 64)
	mustReserve(b, book, load.Request{ID: "a", PromptTokens: 100, PrefillTokens: 100, PrefillTime: time.Hour})
	now := time.Now()
	var sum int
	b.ReportAllocs()
	for b.Loop() {
		sum += book.View(0, now).InFlight
	}
	_ = sum // keeps the loop
}

func BenchmarkProgressWithinABlock(b *testing.B) {
	book := newBook(b, 1)
	r := mustReserve(b, book, load.Request{ID: "a", PromptTokens: 100, BlockSize: 1 << 30})
	b.ReportAllocs()
	for i := 1; b.Loop(); i++ {
		r.Progress(i)
	}
}
