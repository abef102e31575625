package eventbench_test

import (
	"bufio"
	"context"
	"io"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/lab/bench/eventbench"
	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// here runs the engines in this process.
func here(ctx context.Context, l eventbench.Load) (*measure.Child, error) {
	in, stdin := io.Pipe()
	stdout, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := eventbench.Publish(ctx, l, in, out)
		out.Close()
		in.Close()
		done <- err
	}()
	return &measure.Child{In: stdin, Out: bufio.NewReader(stdout), Wait: func() error { return <-done }}, nil
}

func TestRunMeasuresEverything(t *testing.T) {
	r, err := eventbench.Run(t.Context(), eventbench.Config{
		Engines: 3, Burst: 30_000, Blocks: 20_000, Rate: 20_000, Steady: 200 * time.Millisecond, Start: here, Progress: io.Discard,
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]float64{
		"blocks_per_s": r.BlocksPerS, "blocks_per_cpu_s": r.BlocksPerCPUS, "visible_p50_us": r.VisibleP50, "visible_p99_us": r.VisibleP99,
		"visible_p999_us": r.VisibleP999, "visible_from_due_p99_us": r.FromDueP99, "achieved": r.AchievedPerS, "cpu share": r.SteadyCPUShare,
	} {
		if v <= 0 {
			t.Errorf("%s = %v, want a positive figure", name, v)
		}
	}
	if b := r.Burst; b == nil || b.Blocks != 16*3*(30_000/16/3) || b.CPUPerBlock <= 0 || b.Index < 16 || b.Index > 1000 {
		t.Errorf("burst %+v, want its figures", b)
	}
	if r.Blocks != 2*16*3*2*(20_000/2/16/3) {
		t.Errorf("%d blocks, want all that were published", r.Blocks)
	}
	if r.VisibleP99 < r.VisibleP50 || r.VisibleMax < r.VisibleP999 || r.FromDueP99 < r.VisibleP50 {
		t.Errorf("the quantiles contradict each other: %+v", r)
	}
}

func TestRunRefusesWhatCannotBeMeasured(t *testing.T) {
	if _, err := eventbench.Run(t.Context(), eventbench.Config{Engines: 0, Blocks: 1, Rate: 1, Steady: 1}); err == nil {
		t.Error("no engines: no error")
	}
	broken := func(context.Context, eventbench.Load) (*measure.Child, error) { return nil, io.ErrUnexpectedEOF }
	if _, err := eventbench.Run(t.Context(), eventbench.Config{Engines: 1, Blocks: 1, Rate: 1, Steady: 1, Start: broken, Progress: io.Discard}); err == nil {
		t.Error("engines that do not start: no error")
	}
}

func TestPublishEndsWithItsInput(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e, err := here(ctx, eventbench.Load{Engines: 1, Batches: 1})
	if err != nil {
		t.Fatal(err)
	}
	e.In.Close() // before anybody subscribes
	io.Copy(io.Discard, e.Out)
	if err := e.Wait(); err == nil || ctx.Err() != nil {
		t.Errorf("Publish() = %v, want an error at once: nothing was published", err)
	}
}
