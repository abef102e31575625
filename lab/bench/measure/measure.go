// Package measure is the common code of all benchmarks: processor time, quantiles, child processes, addresses. Its functions are safe
// for concurrent use.
package measure

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// CPUTime is the processor time that this process has used.
func CPUTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// ProcessCPU is the user and system time of a process so far, over its threads that have not ended: the scheduler's count in nanoseconds,
// since the ticks of /proc/PID/stat are too coarse for a short turn.
func ProcessCPU(pid int) (time.Duration, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(threads) == 0 {
		return 0, errors.Join(fmt.Errorf("process %d reports no times", pid), err)
	}
	var total time.Duration
	for _, name := range threads {
		text, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // the thread has ended
		}
		if err != nil {
			return 0, err
		}
		first, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, err
		}
		total += time.Duration(ns)
	}
	return total, nil
}

// Quantile of a sorted list, zero for an empty one.
func Quantile[T cmp.Ordered](sorted []T, q float64) T {
	if len(sorted) == 0 {
		var zero T
		return zero
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// Median sorts a list and returns its middle.
func Median[T cmp.Ordered](list []T) T {
	slices.Sort(list)
	return Quantile(list, 0.5)
}

// Micros is a time in microseconds.
func Micros(d time.Duration) float64 { return float64(d) / 1e3 }

// Child is this program again, as a process of its own that ends with its input.
type Child struct {
	In   io.WriteCloser
	Out  *bufio.Reader
	Wait func() error
}

// StartSelf runs this program with these arguments.
func StartSelf(ctx context.Context, args ...string) (*Child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &Child{In: in, Out: bufio.NewReader(out), Wait: cmd.Wait}, cmd.Start()
}

// Await calls ready until it returns nil, and returns its last error once limit is over.
func Await(ctx context.Context, limit time.Duration, ready func() error) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		err := ready()
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
	}
}
