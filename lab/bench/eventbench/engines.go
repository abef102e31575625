package eventbench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllmtest"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

const (
	batchBlocks = 16 // stored by one batch, which removes as many
	blockTokens = 16
	batchOps    = 2 * batchBlocks
	// An engine's batches come round after a cycle; each is removed half a cycle after it was stored.
	cycle = 2048
	held  = cycle / 2
	// ahead is how many batches an engine may have sent that were not applied: when there is no rate,
	// the router's pace is measured, and nothing is to be dropped.
	ahead = 4096
	// numberAt is where an encoded message has its number: after the empty topic and two frames' headers.
	numberAt = 2 + 2
)

// Load is the engines' load.
type Load struct {
	Engines int
	Batches int // of each engine
	// Rate is the blocks stored per second by all engines together; as many are removed. Zero: as
	// fast as they are taken.
	Rate int
	// Fresh has every block stored once and none removed, without waiting for the router.
	Fresh bool
}

// Report is the engines' report at the end.
type Report struct {
	// Due and Sent are when each batch was to be sent and when it was, in nanoseconds of the system's
	// clock: batch i is engine i%Engines' next one. Empty without a rate.
	Due, Sent []int64
}

// Publish is the engines' process. It prints its sockets as a line of JSON, waits for subscribers and
// for the line "go", publishes, and prints its Report. Lines with numbers say how many batches
// of each engine were applied. It ends with its input.
func Publish(ctx context.Context, l Load, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	engines := make([]*engine, l.Engines)
	var sockets []string
	for i := range engines {
		e := newEngine(i, l.Fresh)
		engines[i] = e
		ln, err := zmtp.Listen(ctx, "tcp://127.0.0.1:0")
		if err != nil {
			return err
		}
		sockets = append(sockets, "tcp://"+ln.Addr().String())
		serving.Go(func() {
			// An engine that is not reached shows as one without subscriber.
			_ = zmtp.Serve(ctx, ln, zmtp.Params{Type: zmtp.PUB}, e.serve)
		})
	}
	var applied atomic.Int64
	begin := make(chan struct{})
	go func() { // ends with the pipe, and ends everything else
		defer cancel()
		begun := false
		for lines := bufio.NewScanner(in); lines.Scan(); {
			if n, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
				applied.Store(n)
			} else if !begun {
				begun = true
				close(begin)
			}
		}
	}()
	answers := json.NewEncoder(out)
	if err := answers.Encode(sockets); err != nil {
		return err
	}
	for _, e := range engines {
		if err := until(ctx, e.subscribed); err != nil {
			return err
		}
	}
	if err := until(ctx, begin); err != nil {
		return err
	}
	report, err := l.publish(ctx, engines, &applied)
	if err != nil {
		return err
	}
	if err := answers.Encode(report); err != nil {
		return err
	}
	<-ctx.Done() // the sockets stay until the other side has read everything
	return nil
}

// until waits for a channel that is closed.
func until(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l Load) publish(ctx context.Context, engines []*engine, applied *atomic.Int64) (Report, error) {
	var r Report
	if l.Rate > 0 {
		r.Due, r.Sent = make([]int64, 0, l.Batches*l.Engines), make([]int64, 0, l.Batches*l.Engines)
	}
	step := time.Duration(0)
	if l.Rate > 0 {
		step = batchBlocks * time.Second / time.Duration(l.Rate)
	}
	begin := time.Now()
	for i := range l.Batches * l.Engines { // an open loop: a late batch is sent at once
		due := begin.Add(step * time.Duration(i))
		n := i / l.Engines
		for l.Rate == 0 && !l.Fresh && int64(n) > applied.Load()+ahead && ctx.Err() == nil {
			time.Sleep(100 * time.Microsecond)
		}
		if wait := time.Until(due); l.Rate > 0 && wait > 0 {
			time.Sleep(wait)
		}
		now := time.Now()
		if err := engines[i%l.Engines].send(n); err != nil {
			return r, fmt.Errorf("publish batch %d: %w", i, err)
		}
		if l.Rate > 0 {
			r.Due, r.Sent = append(r.Due, due.UnixNano()), append(r.Sent, now.UnixNano())
		}
	}
	return r, nil
}

// engine publishes a cache that turns over.
type engine struct {
	subscribed chan struct{}
	conn       *zmtp.Conn
	once       sync.Once
	batches    [][]byte // encoded messages: an empty topic, the number, the payload
	fresh      *fresh   // instead of batches
}

func newEngine(rank int, distinct bool) *engine {
	e := &engine{subscribed: make(chan struct{})}
	if distinct {
		e.fresh = newFresh(rank)
		return e
	}
	layout := vllmtest.Newest()
	name := func(batch, block int) uint64 {
		return 0xff<<56 | uint64(rank)<<40 | uint64(batch*batchBlocks+block+1)<<8
	}
	for batch := range cycle {
		gone := (batch + cycle - held) % cycle
		var events []vllmtest.Event
		for block := range batchBlocks { // one event per block, as vLLM sends them
			events = append(events, vllmtest.Removed(name(gone, block)).With("group_idx", 0))
		}
		hashes := make([]uint64, batchBlocks)
		for block := range hashes {
			hashes[block] = name(batch, block)
		}
		events = append(events, vllmtest.Stored(hashes, nil, cycleTokens(rank, batch), blockTokens).With("group_idx", 0).With("kv_cache_spec_kind", "full_attention"))
		e.batches = append(e.batches, zmtp.AppendMessage(nil, nil, make([]byte, 8), layout.Batch(1.7e9, rank, events...)))
	}
	return e
}

// cycleTokens are the tokens of a batch of the cycle.
func cycleTokens(rank, batch int) []uint32 {
	ids := make([]uint32, batchBlocks*blockTokens)
	for i := range ids {
		ids[i] = uint32((rank*cycle+batch)*31+i*7919) % 150_000
	}
	return ids
}

// lastPrompt are the tokens of the prompt that the engine's last batch belongs to.
func (l Load) lastPrompt(rank int) []uint32 {
	last := l.Batches - 1
	if !l.Fresh {
		return cycleTokens(rank, last%cycle)
	}
	var ids []uint32
	for n := last - last%promptBatches; n <= last; n++ {
		for i := range batchBlocks {
			block := freshTokens(rank)[i*blockTokens : (i+1)*blockTokens]
			block[0] = freshToken(rank, n*batchBlocks+i)
			ids = append(ids, block...)
		}
	}
	return ids
}

// serve keeps the connection of the one subscriber.
func (e *engine) serve(ctx context.Context, c *zmtp.Conn) {
	var m zmtp.Message
	if c.Recv(&m) != nil {
		return
	}
	e.once.Do(func() {
		e.conn = c
		close(e.subscribed)
		<-ctx.Done()
	})
}

func (e *engine) send(n int) error {
	var wire []byte
	if e.fresh != nil {
		wire = e.fresh.batch(n)
	} else {
		wire = e.batches[n%cycle]
	}
	binary.BigEndian.PutUint64(wire[numberAt:], uint64(n))
	return e.conn.WriteEncoded(wire)
}

// promptBatches is how many batches of a fresh engine continue each other: prompts of 512 blocks.
const promptBatches = 32

// fresh makes batches of blocks that were never stored before, by changing one encoded batch where its names and
// tokens lie.
type fresh struct {
	rank          int
	first, follow pattern // the beginning of a prompt, and its continuation
}

// pattern is an encoded batch.
type pattern struct {
	wire   []byte
	parent int // where the parent's name lies; 0: the batch has none
	hashes []int
	tokens []int // of each block, where its first token lies
}

func newFresh(rank int) *fresh {
	return &fresh{rank: rank, first: newPattern(rank, false), follow: newPattern(rank, true)}
}

// mark is a name or, in its upper half, a token that nothing else in the batch looks like.
func mark(i int) uint64 { return 0xA5C3_0000_5A3C_0000 + uint64(i)*0x0001_0000_0001 }

func newPattern(rank int, continues bool) pattern {
	hashes, ids := make([]uint64, batchBlocks), freshTokens(rank)
	for i := range hashes {
		hashes[i], ids[i*blockTokens] = mark(i), uint32(mark(i)>>32)
	}
	var parent any
	if continues {
		parent = mark(batchBlocks)
	}
	event := vllmtest.Stored(hashes, parent, ids, blockTokens).With("group_idx", 0).With("kv_cache_spec_kind", "full_attention")
	p := pattern{wire: zmtp.AppendMessage(nil, nil, make([]byte, 8), vllmtest.Newest().Batch(1.7e9, rank, event))}
	for i := range batchBlocks {
		name := binary.BigEndian.AppendUint64([]byte{0xcf}, mark(i))
		p.hashes = append(p.hashes, bytes.Index(p.wire, name)+1)
		token := binary.BigEndian.AppendUint32([]byte{0xce}, uint32(mark(i)>>32))
		p.tokens = append(p.tokens, bytes.Index(p.wire, token)+1)
	}
	if continues {
		p.parent = bytes.Index(p.wire, binary.BigEndian.AppendUint64([]byte{0xcf}, mark(batchBlocks))) + 1
	}
	return p
}

// batch is the engine's batch of that number, valid until the next call.
func (f *fresh) batch(n int) []byte {
	p := &f.first
	if n%promptBatches > 0 {
		p = &f.follow
		binary.BigEndian.PutUint64(p.wire[p.parent:], f.name(n*batchBlocks-1))
	}
	for i := range batchBlocks {
		binary.BigEndian.PutUint64(p.wire[p.hashes[i]:], f.name(n*batchBlocks+i))
		binary.BigEndian.PutUint32(p.wire[p.tokens[i]:], freshToken(f.rank, n*batchBlocks+i))
	}
	return p.wire
}

// freshTokens are the tokens of a batch of new blocks, but for each block's first.
func freshTokens(rank int) []uint32 {
	ids := make([]uint32, batchBlocks*blockTokens)
	for i := range ids {
		ids[i] = uint32(rank*31+i*7919) % 60_000
	}
	return ids
}

// freshToken is the first token of an engine's block i. Its encoded width is always the same.
func freshToken(rank, i int) uint32 { return 1<<31 | uint32(rank)<<24 | uint32(i)&(1<<24-1) }

// name is the engine's name of its block i.
func (f *fresh) name(i int) uint64 {
	return (uint64(f.rank)<<40 | uint64(i+1)) * 0x9E3779B97F4A7C15
}
