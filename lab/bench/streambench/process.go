package streambench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// process is a child process that serves.
type process struct {
	name string
	cmd  *exec.Cmd
	// address takes the load; debug serves /debug/pprof, and is empty for processes not written in Go.
	address, debug string
	// pids are those whose CPU counts.
	pids []int
	// upstream is the subject's own, when it needs another one than all share; events and replay are then where it publishes.
	upstream       *process
	events, replay string
}

// command is a process that is interrupted when ctx ends.
func command(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// start runs the command; its first line of output is its address, and for an upstream with events where these are.
func start(ctx context.Context, name string, args ...string) (*process, error) {
	cmd := command(ctx, args)
	cmd.Env = append(os.Environ(), "GODEBUG=")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: no address: %w", name, err), cmd.Wait())
	}
	fields := append(strings.Fields(line), "", "", "")
	return &process{name: name, cmd: cmd, address: fields[0], debug: fields[0], events: fields[1], replay: fields[2], pids: []int{cmd.Process.Pid}}, nil
}

// stop ends the process and waits for it.
func (p *process) stop() {
	if p.upstream != nil {
		defer p.upstream.stop()
	}
	if p.cmd == nil {
		return
	}
	p.cmd.Process.Signal(os.Interrupt) //nolint:errcheck // it may have ended
	p.cmd.Wait()                       //nolint:errcheck // ended by a signal
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

// reservations is what the router has booked now; none for a process that books nothing.
func (p *process) reservations(ctx context.Context) (int, error) {
	if !strings.HasPrefix(p.name, Kvpilot) {
		return 0, nil
	}
	text, err := get(ctx, p.debug, "/metrics")
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
	var total int64
	for _, pid := range p.pids {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return 0, err
		}
		_, after, _ := strings.Cut(string(status), "VmHWM:")
		kib, err := strconv.ParseInt(strings.Fields(after + " ?")[0], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("process %d shows no peak of its memory: %w", pid, err)
		}
		total += kib << 10
	}
	return total, nil
}

// resident is the memory in use as it is, in bytes.
func (p *process) resident() (int64, error) {
	var total int64
	for _, pid := range p.pids {
		statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if err != nil {
			return 0, err
		}
		pages, err := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
		if err != nil {
			return 0, err
		}
		total += pages * int64(os.Getpagesize())
	}
	return total, nil
}

// memory reads the number of allocations so far from the heap profile's text.
func (p *process) memory(ctx context.Context, collect bool) (mallocs int64, err error) {
	path := "/debug/pprof/heap?debug=1"
	if collect {
		path += "&gc=1"
	}
	text, err := get(ctx, p.debug, path)
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

// goroutines counts them.
func (p *process) goroutines(ctx context.Context) (int, error) {
	text, err := get(ctx, p.debug, "/debug/pprof/goroutine?debug=1")
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

// get reads a page of a control surface.
func get(ctx context.Context, address, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	return string(b), err
}
