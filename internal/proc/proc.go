// Package proc starts processes for measurements and end-to-end checks, with their output in a log, and stops them by their
// process id.
package proc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Process is a running process and the process group that it leads.
type Process struct {
	Name, Log string
	PID       int
	gone      chan struct{}
}

// Start runs cmd in a process group of its own and appends its output to the file log. The end of cmd's context
// must not end the process: Stop does, in order.
func Start(name, log string, cmd *exec.Cmd) (*Process, error) {
	out, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the process has a descriptor of its own
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, Log: log, PID: cmd.Process.Pid, gone: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(p.gone)
	}()
	return p, nil
}

// Adopt returns a process that an earlier run has started.
func Adopt(name, log string, pid int) *Process {
	p := &Process{Name: name, Log: log, PID: pid, gone: make(chan struct{})}
	go func() {
		for syscall.Kill(pid, 0) == nil {
			time.Sleep(100 * time.Millisecond)
		}
		close(p.gone)
	}()
	return p
}

// Gone is closed when the process has ended.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// Stop ends the process group: with SIGTERM first, and with SIGKILL after the grace period. A nil Process is stopped already.
func (p *Process) Stop(grace time.Duration) {
	if p == nil || p.Ended() {
		return
	}
	p.signal(syscall.SIGTERM)
	select {
	case <-p.gone:
	case <-time.After(grace):
	}
	p.Kill()
}

// Kill ends the process group as a crash would, and waits for the process. What of the group outlives the process is
// killed, too.
func (p *Process) Kill() {
	p.signal(syscall.SIGKILL)
	<-p.gone
}

func (p *Process) signal(s syscall.Signal) {
	_ = syscall.Kill(-p.PID, s) // it may have ended just now
}

// Until calls ready every while until it returns nil, the process has ended or the limit has passed.
func (p *Process) Until(ctx context.Context, limit, every time.Duration, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.gone:
			return fmt.Errorf("%s ended while starting; see %s", p.Name, p.Log)
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; see %s", p.Name, err, p.Log)
		case <-time.After(every):
		}
	}
}

// FreePorts returns TCP ports of the loopback on which nothing listens.
func FreePorts(n int) ([]int, error) {
	var ports []int
	var errs []error
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it never waits
		if err != nil {
			errs = append(errs, err)
			continue
		}
		defer ln.Close() // held until all are known, so that they differ
		ports = append(ports, ln.Addr().(*net.TCPAddr).Port)
	}
	return ports, errors.Join(errs...)
}
