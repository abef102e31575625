package eventbench

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"time"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// Burst is the cost of the blocks of a burst. Memory is in bytes per block.
type Burst struct {
	Blocks      int64   `json:"blocks"`
	BlocksPerS  float64 `json:"blocks_per_s"`
	CPUPerBlock float64 `json:"cpu_ns_per_block"`
	// Index is the index itself at the end.
	Index float64 `json:"index_bytes_per_block"`
	// AbovePeak is the growth of the process's resident memory at its highest, and AboveEnd at the end, less the index.
	AbovePeak float64 `json:"rss_above_index_peak_bytes_per_block"`
	AboveEnd  float64 `json:"rss_above_index_end_bytes_per_block"`
	// QueuedPeak is the most that waited in queues, in bytes.
	QueuedPeak int64 `json:"queued_peak_bytes"`
}

// burst stores distinct blocks only, from engines that do not wait for the router.
func (c Config) burst(ctx context.Context, r *Result) error {
	s, err := c.start(ctx, Load{Engines: c.Engines, Batches: max(c.Burst/batchBlocks/c.Engines, 1), Fresh: true})
	if err != nil {
		return err
	}
	stop, err := c.profile("burst")
	if err != nil {
		return s.stop(err)
	}
	defer stop()
	runtime.GC()
	before, err := resident()
	if err != nil {
		return s.stop(err)
	}
	peak := before
	var queued int64
	watch := func() error {
		now, err := resident()
		peak = max(peak, now)
		var waiting int64
		for _, st := range s.plane.Statuses() {
			waiting += st.QueuedBytes
		}
		queued = max(queued, waiting)
		return err
	}
	begin, used := time.Now(), measure.CPUTime()
	if err := s.run(ctx, watch); err != nil {
		return s.stop(err)
	}
	b := &Burst{Blocks: int64(s.want) * batchBlocks, QueuedPeak: queued}
	b.BlocksPerS = float64(b.Blocks) / time.Since(begin).Seconds()
	b.CPUPerBlock = float64(measure.CPUTime()-used) / float64(b.Blocks)
	if err := c.heap("burst"); err != nil {
		return s.stop(err)
	}
	end, err := resident()
	if err != nil {
		return s.stop(err)
	}
	stats := s.Stats()
	if held := stats.Blocks; held != b.Blocks {
		return s.stop(errors.New("the index holds " + strconv.FormatInt(held, 10) + " blocks of " + strconv.FormatInt(b.Blocks, 10)))
	}
	b.Index = float64(stats.Bytes) / float64(b.Blocks)
	b.AbovePeak = float64(max(peak, end)-before)/float64(b.Blocks) - b.Index
	b.AboveEnd = float64(end-before)/float64(b.Blocks) - b.Index
	r.Burst = b
	return s.stop(nil)
}

// resident is this process's resident memory in bytes.
func resident() (int64, error) {
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(raw)
	if len(fields) < 2 {
		return 0, errors.New("/proc/self/statm has no resident size")
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// profile starts a phase's CPU profile, if one is wanted.
func (c Config) profile(phase string) (stop func(), err error) {
	if c.Profiles == "" {
		return func() {}, nil
	}
	f, err := os.Create(filepath.Join(c.Profiles, "events-"+phase+".cpu"))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close() // a missing part shows when the profile is read
	}, nil
}

// heap writes a heap profile, if one is wanted.
func (c Config) heap(phase string) error {
	if c.Profiles == "" {
		return nil
	}
	f, err := os.Create(filepath.Join(c.Profiles, "events-"+phase+".heap"))
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
}
