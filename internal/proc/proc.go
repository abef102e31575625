// Package proc starts processes for measurements and tests, and stops them by their process id.
package proc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Process is a running process and the process group that it leads.
type Process struct {
	Name string
	Log  string // the file of its output, if any
	PID  int
	gone chan struct{}
	err  error // how it ended; written before gone is closed
}

// Command returns a command that the end of ctx does not end: Stop does, in order.
func Command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(context.WithoutCancel(ctx), args[0], args[1:]...)
}

// Bound returns a command that the end of ctx interrupts.
func Bound(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// Start runs cmd in a process group of its own.
func Start(name string, cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, PID: cmd.Process.Pid, gone: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.gone)
	}()
	return p, nil
}

// StartLogged is Start with the output of cmd appended to the file log.
func StartLogged(name, log string, cmd *exec.Cmd) (*Process, error) {
	out, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the process has a descriptor of its own
	cmd.Stdout, cmd.Stderr = out, out
	p, err := Start(name, cmd)
	if err == nil {
		p.Log = log
	}
	return p, err
}

// StartTalking is Start for a cmd whose first line of output says where it serves; out has the output behind it.
func StartTalking(name string, cmd *exec.Cmd) (p *Process, line string, out io.Reader, err error) {
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", nil, err
	}
	if p, err = Start(name, cmd); err != nil {
		return nil, "", nil, err
	}
	read := bufio.NewReader(pipe)
	if line, err = read.ReadString('\n'); err != nil {
		p.Kill()
		return nil, "", nil, fmt.Errorf("start %s: no line of output: %w", name, errors.Join(err, p.Err()))
	}
	return p, line, read, nil
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

// Err is how the process ended: nil while it runs, and when it succeeded.
func (p *Process) Err() error {
	if !p.Ended() {
		return nil
	}
	return p.err
}

// Signal sends a signal to the process group, which may have ended.
func (p *Process) Signal(s syscall.Signal) { _ = syscall.Kill(-p.PID, s) }

// Stop ends the process group: with SIGTERM first, and with SIGKILL after the grace period. A nil Process is stopped already.
func (p *Process) Stop(grace time.Duration) {
	if p == nil || p.Ended() {
		return
	}
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.gone:
	case <-time.After(grace):
	}
	p.Kill()
}

// Kill ends the process group as a crash would, and waits for the process. Processes of the group that outlive it are killed, too.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.gone
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
			return fmt.Errorf("%s ended while starting%s", p.Name, p.seeLog())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w%s", p.Name, err, p.seeLog())
		case <-time.After(every):
		}
	}
}

func (p *Process) seeLog() string {
	if p.Log == "" {
		return ""
	}
	return "; see " + p.Log
}

// FreePorts returns TCP ports of the loopback on which nothing listens. They lie below the ports that a system hands out by itself, so that
// no other process that asks for any port gets one of them before its user listens.
func FreePorts(ctx context.Context, n int) ([]int, error) {
	var ports []int
	for range 100 * (n + 1) {
		if len(ports) == n {
			return ports, nil
		}
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err != nil {
			continue // taken
		}
		defer l.Close() // held until all are known, so that they differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return nil, fmt.Errorf("no %d free ports of the loopback", n)
}

// FreeAddresses returns addresses of the loopback on which nothing listens.
func FreeAddresses(ctx context.Context, n int) ([]string, error) {
	ports, err := FreePorts(ctx, n)
	list := make([]string, len(ports))
	for i, port := range ports {
		list[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	return list, err
}
