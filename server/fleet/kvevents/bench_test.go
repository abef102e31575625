package kvevents_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllmtest"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

const (
	benchBlocks = 16  // per batch
	benchSize   = 16  // tokens per block
	benchCycle  = 512 // batches that store, then as many that remove the same
)

// stream is a cycle of encoded batches: an engine whose cache turns over.
type stream struct {
	wire []byte
	seqs []int // where each number stands in wire
	next uint64
}

func newStream(rank int, layout vllmtest.Layout) *stream {
	s := &stream{}
	add := func(payload []byte) {
		at := len(s.wire)
		s.wire = zmtp.AppendMessage(s.wire, nil, make([]byte, 8), payload)
		s.seqs = append(s.seqs, at+2+2)
	}
	hash := func(batch, block int) uint64 {
		return uint64(rank)<<40 | uint64(batch*benchBlocks+block+1)<<8 | 0xff<<56
	}
	for batch := range benchCycle {
		var hashes []uint64
		ids := make([]uint32, benchBlocks*benchSize)
		for i := range ids {
			ids[i] = uint32((batch*len(ids) + i*7919) % 150000)
		}
		for block := range benchBlocks {
			hashes = append(hashes, hash(batch, block))
		}
		add(layout.Batch(1.7e9, rank, vllmtest.Stored(hashes, nil, ids, benchSize).With("group_idx", 0).With("kv_cache_spec_kind", "full_attention")))
	}
	for batch := range benchCycle {
		var events []vllmtest.Event
		for block := range benchBlocks { // one event per block, as vLLM does
			events = append(events, vllmtest.Removed(hash(batch, block)).With("group_idx", 0))
		}
		add(layout.Batch(1.7e9, rank, events...))
	}
	return s
}

// renumber gives the cycle's batches their next numbers.
func (s *stream) renumber() {
	for _, at := range s.seqs {
		binary.BigEndian.PutUint64(s.wire[at:], s.next)
		s.next++
	}
}

// countingSink counts the blocks that arrive before it passes them on.
type countingSink struct {
	kvevents.Sink
	blocks atomic.Int64
}

func (c *countingSink) Store(slot replica.Slot, ev *kvblock.Stored) {
	c.Sink.Store(slot, ev)
	c.blocks.Add(int64(len(ev.Hashes)))
}

func (c *countingSink) Remove(slot replica.Slot, ev *kvblock.Removed) {
	c.Sink.Remove(slot, ev)
	c.blocks.Add(int64(len(ev.Hashes)))
}

type nowhere struct{}

func (nowhere) Store(replica.Slot, *kvblock.Stored)      {}
func (nowhere) Remove(replica.Slot, *kvblock.Removed)    {}
func (nowhere) Clear(replica.Slot, kvblock.Tier, bool)   {}
func (nowhere) Reset(replica.Slot)                       {}
func (nowhere) SetState(replica.Slot, kvblock.FeedState) {}

func benchIndex(b *testing.B, ranks int) *kvindex.Index {
	b.Helper()
	index := kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})
	for i := range ranks {
		if err := index.AddRank(replica.Slot(i), kvindex.RankInfo{Rank: replica.Rank{Replica: "b", Index: i}, BlockSize: benchSize}); err != nil {
			b.Fatal(err)
		}
	}
	return index
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkIngest measures from the bytes of a ZMQ socket to the sink, engines included in the
// processor time: an operation is one batch of 16 blocks.
func BenchmarkIngest(b *testing.B) {
	const ranks = 4
	for _, tt := range []struct {
		name string
		sink func(b *testing.B) kvevents.Sink
	}{
		{"nowhere", func(*testing.B) kvevents.Sink { return nowhere{} }},
		{"index", func(b *testing.B) kvevents.Sink { return benchIndex(b, ranks) }},
	} {
		for _, layout := range []vllmtest.Layout{vllmtest.Layouts()[5], vllmtest.Newest()} {
			b.Run(tt.name+"/"+layout.Name, func(b *testing.B) { ingest(b, ranks, layout, &countingSink{Sink: tt.sink(b)}) })
		}
	}
}

func ingest(b *testing.B, ranks int, layout vllmtest.Layout, sink *countingSink) {
	plane := kvevents.New(kvevents.DefaultConfig(), kvevents.Params{Sink: sink})
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	start := make(chan struct{})
	var ready sync.WaitGroup
	cycles := b.N/(ranks*2*benchCycle) + 1
	for rank := range ranks {
		s := newStream(rank, layout)
		ln, err := zmtp.Listen(ctx, "tcp://127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		ready.Add(1)
		running.Go(func() {
			zmtp.Serve(ctx, ln, zmtp.Params{Type: zmtp.PUB}, func(_ context.Context, c *zmtp.Conn) {
				var m zmtp.Message
				c.Recv(&m) // the subscription
				ready.Done()
				<-start
				for range cycles {
					s.renumber()
					for sink.blocks.Load() < int64(s.next-2*benchCycle-400)*benchBlocks {
						// A slow sink holds the engine back here, so that nothing is dropped.
						time.Sleep(100 * time.Microsecond)
					}
					if c.WriteEncoded(s.wire) != nil {
						return
					}
				}
				<-ctx.Done()
			})
		})
		plane.Add(replica.Slot(rank), replica.Events{Endpoint: "tcp://" + ln.Addr().String()}, fmt.Sprint("r", rank))
	}
	running.Go(func() { plane.Run(ctx) })
	ready.Wait()
	want := int64(cycles*2*benchCycle*ranks) * benchBlocks
	began := cpuTime()
	b.ReportAllocs()
	b.ResetTimer()
	close(start)
	for sink.blocks.Load() < want {
		time.Sleep(200 * time.Microsecond)
		for _, s := range plane.Statuses() {
			if s.DecodeErrors+s.Gaps > 0 {
				b.Fatalf("not a clean run: %+v", s)
			}
		}
	}
	b.StopTimer()
	used := cpuTime() - began
	b.ReportMetric(float64(want)/b.Elapsed().Seconds(), "blocks/s")
	b.ReportMetric(float64(want)/used.Seconds(), "blocks/cpu-s")
}

// BenchmarkVisible measures how long after its publication a block is in the index, at 100,000
// blocks per second from 16 engines. An operation is one batch of 16 blocks.
func BenchmarkVisible(b *testing.B) {
	const ranks, rate = 16, 100_000
	layout := vllmtest.Newest()
	sink := &stampSink{Sink: benchIndex(b, ranks)}
	plane := kvevents.New(kvevents.DefaultConfig(), kvevents.Params{Sink: sink})
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var pubs [ranks]*zmtp.Publisher
	for rank := range ranks {
		pubs[rank] = zmtp.NewPublisher(zmtp.PublisherParams{Buffer: 16})
		ln, err := zmtp.Listen(ctx, "tcp://127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		running.Go(func() { pubs[rank].Serve(ctx, ln) })
		plane.Add(replica.Slot(rank), replica.Events{Endpoint: "tcp://" + ln.Addr().String()}, fmt.Sprint("r", rank))
	}
	running.Go(func() { plane.Run(ctx) })
	for _, p := range pubs {
		for p.Subscriptions() == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	total := max(b.N, 100)
	sink.published, sink.delays = make([]int64, total), make([]int64, total)
	payloads := make([][]byte, total)
	ids := make([]uint32, benchBlocks*benchSize)
	for i := range payloads {
		hashes := make([]uint64, benchBlocks)
		for j := range hashes {
			hashes[j] = uint64(i*benchBlocks + j + 1)
		}
		for j := range ids {
			ids[j] = uint32((i*31 + j*7919) % 150000)
		}
		payloads[i] = layout.Batch(1.7e9, 0, vllmtest.Stored(hashes, nil, ids, benchSize))
	}
	late := make([]int64, total) // of the publisher itself: what the machine costs today
	sink.began = time.Now()
	stalls := watchStalls(ctx, &running, sink.began)
	b.ResetTimer()
	for i, payload := range payloads { // open loop: what is late is sent at once
		due := time.Duration(i) * benchBlocks * time.Second / rate
		if wait := due - time.Since(sink.began); wait > 200*time.Microsecond {
			time.Sleep(wait)
		}
		now := time.Since(sink.began)
		late[i] = int64(now - due)
		atomic.StoreInt64(&sink.published[i], int64(now))
		pubs[i%ranks].Publish(payload)
	}
	for sink.seen.Load() < int64(total) {
		time.Sleep(time.Millisecond)
	}
	b.StopTimer()
	calm := stalls.outside(sink.published, sink.delays)
	slices.Sort(sink.delays)
	slices.Sort(late)
	b.ReportMetric(float64(late[total*99/100])/1000, "publisher-late-p99-µs")
	b.ReportMetric(float64(total*benchBlocks)/b.Elapsed().Seconds(), "blocks/s")
	if len(calm) > 0 {
		b.ReportMetric(float64(calm[len(calm)*99/100])/1000, "p99-unstalled-µs")
		b.ReportMetric(100-100*float64(len(calm))/float64(total), "%stalled")
	}
	for _, q := range []float64{0.5, 0.99, 0.999} {
		b.ReportMetric(float64(sink.delays[int(q*float64(total-1))])/1000, fmt.Sprintf("p%v-µs", q*100))
	}
}

// stalls are the times at which a thread that only sleeps was not woken: others had the processors.
type stalls struct {
	mu   sync.Mutex
	list [][2]int64
}

const stallTime = int64(2 * time.Millisecond)

func watchStalls(ctx context.Context, running *sync.WaitGroup, began time.Time) *stalls {
	s := &stalls{}
	running.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		pause := syscall.NsecToTimespec(int64(250 * time.Microsecond))
		for last := int64(time.Since(began)); ctx.Err() == nil; {
			syscall.Nanosleep(&pause, nil) // the kernel's wake-up, not the Go scheduler's
			now := int64(time.Since(began))
			if now-last > stallTime {
				s.mu.Lock()
				s.list = append(s.list, [2]int64{last, now})
				s.mu.Unlock()
			}
			last = now
		}
	})
	return s
}

// outside returns the delays, sorted, of what neither came nor went during a stall.
func (s *stalls) outside(published, delays []int64) []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var calm []int64
	for i, d := range delays {
		from, to := published[i], published[i]+d
		if !slices.ContainsFunc(s.list, func(st [2]int64) bool { return from < st[1] && to > st[0] }) {
			calm = append(calm, d)
		}
	}
	slices.Sort(calm)
	return calm
}

// stampSink notes when each batch became visible.
type stampSink struct {
	kvevents.Sink
	began             time.Time
	published, delays []int64
	seen              atomic.Int64
}

func (s *stampSink) Store(slot replica.Slot, ev *kvblock.Stored) {
	s.Sink.Store(slot, ev)
	i := (int(ev.Hashes[0]) - 1) / benchBlocks
	s.delays[i] = int64(time.Since(s.began)) - atomic.LoadInt64(&s.published[i])
	s.seen.Add(1)
}
