package eventbench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// Config says what to measure.
type Config struct {
	Engines int
	// Blocks are stored and as many removed when the engines send as fast as they can.
	Blocks int
	// Rate is the blocks stored per second when the delay is measured, for as long as Steady says.
	Rate   int
	Steady time.Duration
	// Burst is the blocks stored, none twice and none removed, by engines that send as fast as the sockets take
	// them, whatever the router has applied. Zero: no burst.
	Burst int
	// Profiles is a folder for CPU profiles of each phase and a heap profile of the burst; empty: none.
	Profiles string
	// Dynamo is a Python interpreter with ai-dynamo-runtime, whose selection service gets the same events; empty: no comparison.
	Dynamo string
	// Start runs Publish somewhere.
	Start func(ctx context.Context, l Load) (*measure.Child, error)
	// Progress takes remarks for people.
	Progress io.Writer
}

// Result has the figures.
type Result struct {
	Engines int `json:"engines"`
	// Blocks stored or removed, per second and per second of this process's processor time, from
	// the bytes in the socket to the index.
	BlocksPerS    float64 `json:"blocks_per_s"`
	BlocksPerCPUS float64 `json:"blocks_per_cpu_s"`
	Blocks        int64   `json:"blocks"`

	// CPUPerBlock is the processor time per block in nanoseconds with both and with one processor for Go code.
	// ScalingCPU is how many times as many blocks two processors could apply as one, by processor time.
	CPUPerBlock    float64 `json:"cpu_ns_per_block"`
	CPUPerBlockOne float64 `json:"cpu_ns_per_block_one_core"`
	ScalingCPU     float64 `json:"two_cores_by_cpu_time"`

	Burst  *Burst  `json:"burst,omitempty"`
	Dynamo *Dynamo `json:"dynamo,omitempty"`

	// Visible is from the moment before a batch was written to the engine's socket until the index
	// answers with it; FromDue counts from when it was to be written, so that an engine
	// process that came late counts too; Late is how late that was.
	OfferedPerS    float64 `json:"offered_blocks_stored_per_s"`
	AchievedPerS   float64 `json:"achieved_blocks_stored_per_s"`
	VisibleP50     float64 `json:"visible_p50_us"`
	VisibleP99     float64 `json:"visible_p99_us"`
	VisibleP999    float64 `json:"visible_p999_us"`
	VisibleMax     float64 `json:"visible_max_us"`
	FromDueP50     float64 `json:"visible_from_due_p50_us"`
	FromDueP99     float64 `json:"visible_from_due_p99_us"`
	PublishLateP99 float64 `json:"publisher_late_p99_us"`
	// Oversleep is how much longer than asked for a thread of this process slept that did nothing else:
	// the machine's addition to any delay.
	OversleepP99   float64 `json:"machine_oversleep_p99_us"`
	SteadyCPUShare float64 `json:"steady_cpu_share"`
}

// Run measures throughput, then delays.
func Run(ctx context.Context, c Config) (*Result, error) {
	if c.Engines < 1 || c.Engines > 256 || c.Blocks < 1 || c.Rate < 1 || c.Steady <= 0 {
		return nil, errors.New("engines, blocks, rate and duration must be positive, and engines at most 256")
	}
	r := &Result{Engines: c.Engines}
	if c.Burst > 0 { // first, so that the memory is its own
		fmt.Fprintf(c.Progress, "a burst of %d blocks\n", c.Burst)
		if err := c.burst(ctx, r); err != nil {
			return nil, fmt.Errorf("burst: %w", err)
		}
	}
	fmt.Fprintf(c.Progress, "%d blocks as fast as they are taken\n", c.Blocks)
	if err := c.flood(ctx, r); err != nil {
		return nil, fmt.Errorf("throughput: %w", err)
	}
	if c.Dynamo != "" {
		fmt.Fprintln(c.Progress, "the same for Dynamo's selection service")
		if err := c.dynamo(ctx, r); err != nil {
			return nil, fmt.Errorf("dynamo: %w", err)
		}
	}
	fmt.Fprintf(c.Progress, "%d blocks per second for %v\n", c.Rate, c.Steady)
	if err := c.steady(ctx, r); err != nil {
		return nil, fmt.Errorf("delay: %w", err)
	}
	return r, nil
}

// floodTurns are the turns with one and with all processors each.
const floodTurns = 2

// flood measures processor time per block, with one and with all processors in turns.
func (c Config) flood(ctx context.Context, r *Result) error {
	all := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(all)
	stop, err := c.profile("flood")
	if err != nil {
		return err
	}
	defer stop()
	var one, many tally
	for range floodTurns {
		for _, t := range []struct {
			procs int
			sum   *tally
		}{{1, &one}, {all, &many}} {
			runtime.GOMAXPROCS(t.procs)
			if err := c.floodOnce(ctx, t.sum); err != nil {
				return err
			}
		}
	}
	r.Blocks = many.blocks
	r.BlocksPerS = float64(many.blocks) / many.wall.Seconds()
	if many.cpu > 0 && one.cpu > 0 {
		r.BlocksPerCPUS = float64(many.blocks) / many.cpu.Seconds()
		r.CPUPerBlock, r.CPUPerBlockOne = many.perBlock(), one.perBlock()
		r.ScalingCPU = float64(min(all, 2)) * r.CPUPerBlockOne / r.CPUPerBlock
	}
	return nil
}

// tally adds up turns.
type tally struct {
	blocks    int64
	wall, cpu time.Duration
}

func (t *tally) perBlock() float64 { return float64(t.cpu) / float64(t.blocks) }

func (c Config) floodOnce(ctx context.Context, sum *tally) error {
	s, err := c.start(ctx, Load{Engines: c.Engines, Batches: max(c.Blocks/floodTurns/batchBlocks/c.Engines, 1)})
	if err != nil {
		return err
	}
	begin, used := time.Now(), measure.CPUTime()
	if err := s.run(ctx, s.report); err != nil {
		return s.stop(err)
	}
	sum.blocks += int64(s.want) * batchOps
	sum.wall += time.Since(begin)
	sum.cpu += measure.CPUTime() - used
	return s.stop(nil)
}

func (c Config) steady(ctx context.Context, r *Result) error {
	l := Load{Engines: c.Engines, Rate: c.Rate}
	l.Batches = max(int(float64(c.Rate)*c.Steady.Seconds())/batchBlocks/c.Engines, 1)
	stop, err := c.profile("steady")
	if err != nil {
		return err
	}
	defer stop()
	s, err := c.start(ctx, l)
	if err != nil {
		return err
	}
	over := watchSleep(ctx)
	begin, used := time.Now(), measure.CPUTime()
	if err := s.run(ctx, nil); err != nil {
		over.stop()
		return s.stop(err)
	}
	r.SteadyCPUShare = (measure.CPUTime() - used).Seconds() / time.Since(begin).Seconds()
	r.OversleepP99 = quantile(over.stop(), .99)
	var report Report
	if err := s.answers.Decode(&report); err != nil {
		return s.stop(fmt.Errorf("read the engines' report: %w", err))
	}
	if len(report.Sent) != s.want || len(report.Due) != s.want {
		return s.stop(fmt.Errorf("the engines report %d batches, want %d", len(report.Sent), s.want))
	}
	var visible, fromDue, late []time.Duration
	last := int64(0)
	for i, sent := range report.Sent {
		seen := s.seen[i%c.Engines][i/c.Engines]
		visible = append(visible, time.Duration(seen-sent))
		fromDue = append(fromDue, time.Duration(seen-report.Due[i]))
		late = append(late, time.Duration(sent-report.Due[i]))
		last = max(last, seen)
	}
	r.OfferedPerS = float64(c.Rate)
	r.AchievedPerS = float64(s.want*batchBlocks) / (float64(last-report.Due[0]) / 1e9)
	r.VisibleP50, r.VisibleP99, r.VisibleP999, r.VisibleMax = quantile(visible, .5), quantile(visible, .99), quantile(visible, .999), quantile(visible, 1)
	r.FromDueP50, r.FromDueP99 = quantile(fromDue, .5), quantile(fromDue, .99)
	r.PublishLateP99 = quantile(late, .99)
	return s.stop(nil)
}

// quantile is in microseconds; it sorts list.
func quantile(list []time.Duration, q float64) float64 {
	slices.Sort(list)
	return measure.Micros(measure.Quantile(list, q))
}

// session is one run of the engines with a router's half before it.
type session struct {
	engines *measure.Child
	answers *json.Decoder
	plane   *kvevents.Plane
	running sync.WaitGroup
	cancel  context.CancelFunc

	*kvindex.Index
	want    int // batches
	applied atomic.Int64
	seen    [][]int64 // by engine and batch: when it was visible; written by the engine's feed alone
}

// Store passes on the event that completes a batch, and notes when that was visible.
func (s *session) Store(slot replica.Slot, ev *kvblock.Stored) {
	s.Index.Store(slot, ev)
	s.seen[slot] = append(s.seen[slot], time.Now().UnixNano())
	s.applied.Add(1)
}

// start runs engines and follows them.
func (c Config) start(ctx context.Context, l Load) (*session, error) {
	index := kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})
	s := &session{Index: index, want: l.Batches * l.Engines, seen: make([][]int64, l.Engines)}
	var err error
	if s.engines, err = c.Start(ctx, l); err != nil {
		return nil, fmt.Errorf("start the engines: %w", err)
	}
	s.answers = json.NewDecoder(bufio.NewReader(s.engines.Out))
	var sockets []string
	if err := s.answers.Decode(&sockets); err != nil {
		return nil, s.stop(fmt.Errorf("read the engines' sockets: %w", err))
	}
	s.plane = kvevents.New(kvevents.DefaultConfig(), kvevents.Params{Sink: s})
	for i, socket := range sockets {
		slot, rank := replica.Slot(i), replica.Rank{Replica: "bench", Index: i}
		if err := index.AddRank(slot, kvindex.RankInfo{Rank: rank, BlockSize: blockTokens}); err != nil {
			return nil, s.stop(err)
		}
		s.seen[i] = make([]int64, 0, l.Batches)
		s.plane.Add(slot, replica.Events{Endpoint: socket}, fmt.Sprint("bench/", i))
	}
	live, cancel := context.WithCancel(ctx)
	s.cancel = cancel
	s.running.Go(func() {
		_ = s.plane.Run(live) // it returns no error
	})
	for ctx.Err() == nil && !s.connected() {
		time.Sleep(time.Millisecond)
	}
	return s, ctx.Err()
}

func (s *session) connected() bool {
	for _, st := range s.plane.Statuses() {
		if !st.Connected {
			return false
		}
	}
	return true
}

// run has the engines publish and returns when all of it is visible. every, which may be nil, is called each millisecond.
func (s *session) run(ctx context.Context, every func() error) error {
	if _, err := fmt.Fprintln(s.engines.In, "go"); err != nil {
		return err
	}
	pause := time.NewTicker(time.Millisecond)
	defer pause.Stop()
	for looks := 1; int(s.applied.Load()) != s.want; looks++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		}
		if every != nil {
			if err := every(); err != nil {
				return err
			}
		}
		if looks%128 > 0 { // each costs as much as an applied batch
			continue
		}
		if err := s.clean(); err != nil {
			return err
		}
	}
	return s.clean()
}

// report sends the engines how far the router is.
func (s *session) report() error {
	_, err := fmt.Fprintln(s.engines.In, int(s.applied.Load())/len(s.seen))
	return err
}

// clean is an error when a feed lost anything: the run would mean nothing, or never end.
func (s *session) clean() error {
	for _, st := range s.plane.Statuses() {
		if st.Gaps+st.Resets+st.DecodeErrors+st.Misfits > 0 || st.Connects != 1 {
			return fmt.Errorf("not a clean run: %+v", st)
		}
	}
	return nil
}

// stop ends everything and adds later failures to err.
func (s *session) stop(err error) error {
	if s.cancel != nil {
		s.cancel()
		s.running.Wait()
	}
	err = errors.Join(err, s.engines.In.Close())
	_, _ = io.Copy(io.Discard, s.engines.Out) // unread output must not block the engines
	return errors.Join(err, s.engines.Wait())
}
