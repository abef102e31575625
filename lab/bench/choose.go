package bench

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// benchChoose measures one decision: token ids to hashes, index, cost of every rank, booking.
type benchChoose struct {
	ranks, blocks, promptTokens int
	duration                    time.Duration
}

// chooseFigures are the command's result.
type chooseFigures struct {
	Ranks        int     `json:"ranks"`
	Blocks       int     `json:"blocks"`
	PromptTokens int     `json:"prompt_tokens"`
	P50          float64 `json:"p50_us"`
	P99          float64 `json:"p99_us"`
	Allocs       float64 `json:"allocs_per_op"`
	PerSecond1   float64 `json:"decisions_per_s_1"`
	PerSecond2   float64 `json:"decisions_per_s_2"`
	// Scaling is the second by the first; Machine is the scaling of two cores here for work that shares nothing
	// and allocates nothing: hashing the same prompts.
	Scaling float64 `json:"scaling_2"`
	Machine float64 `json:"machine_scaling_2"`
}

func newChooseCommand() *cobra.Command {
	var b benchChoose
	cmd := figuresCommand("choose", "Measure a decision: hash, match, price every rank, pick and book",
		func(*cobra.Command) (*chooseFigures, error) { return b.run() }, printChooseBench)
	fleet := figuresCommand("fleet", "Measure the decider of a fleet of routers: read a peer's question, choose, book, answer, release",
		func(*cobra.Command) (*fleetFigures, error) { return b.runFleet() }, printFleetBench)
	cmd.AddCommand(fleet)
	flags := cmd.PersistentFlags()
	flags.IntVar(&b.ranks, "ranks", 64, "ranks to choose among")
	flags.IntVar(&b.blocks, "blocks", 1_000_000, "blocks in the index, over all ranks")
	flags.IntVar(&b.promptTokens, "prompt-tokens", 8192, "length of the prompts")
	flags.DurationVar(&b.duration, "duration", 2*time.Second, "time of each of the five measurements")
	return cmd
}

const (
	chooseBlock = 16
	// chooseInFlight is how many requests per rank are kept booked.
	chooseInFlight = 4
)

func (b *benchChoose) run() (*chooseFigures, error) {
	if b.ranks < 1 || b.ranks > kvindex.MaxRanks || b.blocks < 1 || b.promptTokens < 1 {
		return nil, fmt.Errorf("ranks must be 1 to %d, blocks and prompt tokens at least 1", kvindex.MaxRanks)
	}
	bed, err := b.newBed()
	if err != nil {
		return nil, err
	}
	f := &chooseFigures{Ranks: b.ranks, Blocks: b.blocks, PromptTokens: b.promptTokens}
	if _, err := bed.work(0, 500*time.Millisecond, nil); err != nil { // warm up
		return nil, err
	}
	var times []time.Duration
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	n, _ := bed.work(1, b.duration, &times)
	runtime.ReadMemStats(&after)
	f.Allocs = float64(after.Mallocs-before.Mallocs) / float64(n)
	slices.Sort(times)
	f.P50, f.P99 = measure.Micros(measure.Quantile(times, 0.5)), measure.Micros(measure.Quantile(times, 0.99))
	f.PerSecond1, f.PerSecond2 = bed.compare(b.duration, bed.decide)
	f.Scaling = f.PerSecond2 / f.PerSecond1
	one, two := bed.compare(b.duration, bed.hash)
	f.Machine = two / one
	return f, nil
}

func printChooseBench(out io.Writer, f *chooseFigures) error {
	_, err := fmt.Fprintf(out, "%d ranks, %d blocks, prompts of %d tokens: p50 %.1f µs, p99 %.1f µs, %.1f allocations; %.0f decisions/s on one core, %.0f on two (%.2f times; mere hashing here %.2f times)\n",
		f.Ranks, f.Blocks, f.PromptTokens, f.P50, f.P99, f.Allocs, f.PerSecond1, f.PerSecond2, f.Scaling, f.Machine)
	return err
}

// chooseBed is a chooser over a full index.
type chooseBed struct {
	chooser  *chooser.Chooser
	replicas []*replica.Replica
	prompts  [][]uint32
}

func (b *benchChoose) newBed() (*chooseBed, error) {
	icfg := kvindex.DefaultConfig()
	icfg.MaxRanks = max(icfg.MaxRanks, b.ranks)
	index := kvindex.New(icfg, kvindex.Params{})
	book := load.New(load.DefaultConfig(), load.Params{})
	cfg := chooser.DefaultConfig()
	c := chooser.New(cfg, chooser.Params{Index: index, Book: book, Seed: 1})
	bed := &chooseBed{chooser: c}
	perRank := max(1, b.blocks/b.ranks)
	for i := range b.ranks {
		slot := replica.Slot(i)
		r := &replica.Replica{
			ID: replica.ID("r" + strconv.Itoa(i)), State: replica.StateReady, Slots: []replica.Slot{slot},
			Models: []replica.Model{{ID: "m"}}, BlockSize: chooseBlock, Blocks: 2 * perRank,
		}
		bed.replicas = append(bed.replicas, r)
		book.AddRank(slot)
		c.AddRank(slot, r, 0)
		if err := index.AddRank(slot, kvindex.RankInfo{BlockSize: chooseBlock, Capacity: 2 * perRank}); err != nil {
			return nil, err
		}
		index.SetState(slot, kvblock.FeedExact)
		b.fill(bed, index, slot, perRank)
	}
	return bed, nil
}

// fill stores prompts on a rank until it holds blocks; the first half of each is shared with the
// prompt of the same number on every fourth rank.
func (b *benchChoose) fill(bed *chooseBed, index *kvindex.Index, slot replica.Slot, blocks int) {
	each := max(1, b.promptTokens/chooseBlock)
	for n := 0; n*each < blocks; n++ {
		tokens := make([]uint32, each*chooseBlock)
		for i := range tokens {
			tokens[i] = uint32(n*7919 + i*31)
			if i >= len(tokens)/2 {
				tokens[i] += uint32(slot)<<20 + 1<<30
			} else {
				tokens[i] += uint32(slot) % 4 << 20
			}
		}
		names := make([]kvblock.EngineHash, each)
		for i := range names {
			names[i] = kvblock.EngineHash(uint64(n)<<32 | uint64(i) | 1<<60)
		}
		index.Store(slot, &kvblock.Stored{Hashes: names, Tokens: tokens, BlockSize: chooseBlock})
		if n < 4 && len(bed.prompts) < 256 {
			bed.prompts = append(bed.prompts, tokens[:min(len(tokens), b.promptTokens)])
		}
	}
}

// chooseTurns is how often one core and two take turns.
const chooseTurns = 8

// compare is the rate of task on one core and on two, in turns: a disturbance of a second hits both,
// and the median of the turns counts.
func (bed *chooseBed) compare(d time.Duration, task func(worker int, d time.Duration) int) (one, two float64) {
	var rates [2][]float64
	for turn := range 2 * chooseTurns {
		cores := 1 + (turn+turn/2)%2 // one, two, two, one
		rates[cores-1] = append(rates[cores-1], throughput(cores, d/chooseTurns, task))
	}
	return measure.Median(rates[0]), measure.Median(rates[1])
}

// throughput is how often per second some goroutines on as many cores do task.
func throughput(cores int, d time.Duration, task func(worker int, d time.Duration) int) float64 {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
	var wait sync.WaitGroup
	counts := make([]int, cores)
	began := time.Now()
	for i := range cores {
		wait.Go(func() { counts[i] = task(2+i, d) })
	}
	wait.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / time.Since(began).Seconds()
}

// hash hashes prompts for d, and returns how many.
func (bed *chooseBed) hash(worker int, d time.Duration) int {
	var hashes []blockhash.Hash
	end := time.Now().Add(d)
	for n := 0; ; n++ {
		if time.Now().After(end) {
			return n
		}
		hashes = blockhash.Chain(hashes[:0], bed.prompts[(n*13+worker)%len(bed.prompts)], chooseBlock, blockhash.Namespace{})
	}
}

// decide is work for throughput.
func (bed *chooseBed) decide(worker int, d time.Duration) int {
	n, _ := bed.work(worker, d, nil) // the warm-up has shown that it works
	return n
}

// work decides for d, with some requests kept in flight, and returns how often.
func (bed *chooseBed) work(worker int, d time.Duration, times *[]time.Duration) (int, error) {
	ctx := context.Background()
	flight := make([]*chooser.Choice, chooseInFlight*len(bed.replicas))
	result := chooser.Result{End: decision.EndCompleted, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1}
	defer func() {
		for _, c := range flight {
			if c != nil {
				c.Release(result)
			}
		}
	}()
	prefix := "w" + strconv.Itoa(worker) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36) + "-"
	if times != nil {
		*times = make([]time.Duration, 0, 1<<18)
	}
	name := make([]byte, 0, 64)
	end := time.Now().Add(d)
	for n := 0; ; n++ {
		began := time.Now()
		if began.After(end) {
			return n, nil
		}
		tokens := bed.prompts[(n*13+worker)%len(bed.prompts)]
		req := chooser.Request{
			Request: decision.Request{ID: string(strconv.AppendInt(append(name, prefix...), int64(n), 10)), Model: "m"},
			Pool:    chooser.Pool{Replicas: bed.replicas},
			Prompt:  chooser.Prompt{PromptTokens: len(tokens)},
			Reply:   chooser.Reply{ExpectedOutput: 256, Unstreamed: true},
			Terms:   chooser.Terms{NoQueue: true}, // nothing visits the hold queue here
		}
		hashes := blockhash.Chain(make([]blockhash.Hash, 0, len(tokens)/chooseBlock), tokens, chooseBlock, blockhash.Namespace{})
		req.Hashes = func(int) []blockhash.Hash { return hashes }
		choice, err := bed.chooser.Choose(ctx, &req)
		if err != nil {
			return n, err
		}
		if times != nil && len(*times) < cap(*times) {
			*times = append(*times, time.Since(began))
		}
		choice.FirstToken()
		slot := n % len(flight)
		if old := flight[slot]; old != nil {
			old.Release(result)
		}
		flight[slot] = choice
	}
}
