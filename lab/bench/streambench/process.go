package streambench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// process is a subject: it serves, in a process of its own unless it is Direct.
type process struct {
	*proc.Process
	name string
	// address takes the load; debug serves /debug/pprof, and is empty for processes not written in Go.
	address, debug string
	// pids are the processes whose CPU counts.
	pids []int
	// upstream is the subject's own, when it needs another one than all share; events and replay are then where it publishes.
	upstream       *process
	events, replay string
	// picker is the endpoint picker that the subject asks; its CPU and memory are the subject's.
	picker *process
}

// start runs the command; its first line of output is its address, and for an upstream with events where these are.
func start(ctx context.Context, name string, args ...string) (*process, error) {
	cmd := proc.Bound(ctx, args...)
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "GODEBUG=")
	child, line, _, err := proc.StartTalking(name, cmd)
	if err != nil {
		return nil, err
	}
	fields := append(strings.Fields(line), "", "", "")
	return &process{Process: child, name: name, address: fields[0], debug: fields[0], events: fields[1], replay: fields[2], pids: []int{child.PID}}, nil
}

// serving starts a command that serves at address, and waits until ready returns nil.
func serving(ctx context.Context, name, address string, cmd *exec.Cmd, ready func() error) (*process, error) {
	child, err := proc.Start(name, cmd)
	if err != nil {
		return nil, err
	}
	if err := measure.Await(ctx, 20*time.Second, ready); err != nil {
		child.Stop(grace)
		return nil, fmt.Errorf("does not answer: %w", err)
	}
	return &process{Process: child, name: name, address: address, pids: append(children(child.PID), child.PID)}, nil
}

// grace is how long a process may take to end.
const grace = 10 * time.Second

// stop ends the process and waits for it.
func (p *process) stop() {
	p.Stop(grace)
	for _, other := range []*process{p.upstream, p.picker} {
		if other != nil {
			other.stop()
		}
	}
}

// cpu is the user and system time so far.
func (p *process) cpu() (time.Duration, error) {
	var total time.Duration
	for _, pid := range p.pids {
		used, err := measure.ProcessCPU(pid)
		if err != nil {
			return 0, err
		}
		total += used
	}
	return total, nil
}

// reservations is the number of the router's bookings now; none for a process that books nothing.
func (p *process) reservations(ctx context.Context) (int, error) {
	if !strings.HasPrefix(p.name, Kvpilot) {
		return 0, nil
	}
	text, err := measure.Get(ctx, p.debug, "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "kvpilot_load_reservations "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return int(n), err
		}
	}
	return 0, errors.New("the metrics lack the number of reservations")
}

// rss is the memory in use, in bytes, after a garbage collection.
func (p *process) rss(ctx context.Context) (int64, error) {
	if p.debug != "" {
		if _, err := p.memory(ctx, true); err != nil {
			return 0, err
		}
	}
	return p.resident()
}

// peak is the most memory that each of its processes has used so far, added up, in bytes.
func (p *process) peak() (int64, error) {
	_, peak, err := p.used()
	return peak, err
}

// resident is the memory in use as it is, in bytes.
func (p *process) resident() (int64, error) {
	resident, _, err := p.used()
	return resident, err
}

func (p *process) used() (resident, peak int64, err error) {
	for _, pid := range p.pids {
		now, most, err := proc.Memory(pid)
		if err != nil {
			return 0, 0, err
		}
		resident, peak = resident+now, peak+most
	}
	return resident, peak, nil
}

// memory reads the number of allocations so far from the heap profile's text.
func (p *process) memory(ctx context.Context, collect bool) (mallocs int64, err error) {
	path := "/debug/pprof/heap?debug=1"
	if collect {
		path += "&gc=1"
	}
	text, err := measure.Get(ctx, p.debug, path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "# Mallocs = "); ok {
			return strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, errors.New("the heap profile lacks the number of allocations")
}

// inUse is the memory of live objects and stacks, in bytes, after a garbage collection.
func (p *process) inUse(ctx context.Context) (bytes int64, err error) {
	text, err := measure.Get(ctx, p.debug, "/debug/pprof/heap?debug=1&gc=1")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		for _, name := range []string{"# HeapAlloc = ", "# Stack = "} {
			value, ok := strings.CutPrefix(line, name)
			if !ok {
				continue
			}
			first, _, _ := strings.Cut(strings.TrimSpace(value), " ")
			n, err := strconv.ParseInt(first, 10, 64)
			if err != nil {
				return 0, err
			}
			bytes += n
		}
	}
	return bytes, nil
}

// goroutines counts them.
func (p *process) goroutines(ctx context.Context) (int, error) {
	text, err := measure.Get(ctx, p.debug, "/debug/pprof/goroutine?debug=1")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(text, "\n")
	_, count, found := strings.Cut(line, "total ")
	if !found {
		return 0, fmt.Errorf("unexpected goroutine profile %q", line)
	}
	return strconv.Atoi(strings.TrimSpace(count))
}
