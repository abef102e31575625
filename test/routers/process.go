package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// errSkip marks what cannot be had here; the text before it says why.
var errSkip = errors.New("skipped here")

// process is something that was started and is stopped by its process id.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	gone chan struct{}
}

// start runs a command with its output in a log file of its name.
func start(ctx context.Context, dir, name string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), gone: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()                                                             //nolint:errcheck // the process has its own descriptor
	p.cmd = exec.CommandContext(context.WithoutCancel(ctx), args[0], args[1:]...) // stop ends it, in order
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in its log
		close(p.gone)
	}()
	return p, nil
}

// ended tells whether the process is gone.
func (p *process) ended() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// stop ends the process and its workers, gently first.
func (p *process) stop() {
	if p == nil || p.ended() {
		return
	}
	p.signal(syscall.SIGTERM)
	select {
	case <-p.gone:
	case <-time.After(3 * time.Second): // some wait longer than that for nothing
		p.signal(syscall.SIGKILL)
		<-p.gone
	}
}

func (p *process) signal(s syscall.Signal) {
	_ = syscall.Kill(-p.cmd.Process.Pid, s) // it may have ended just now
}

// cpu is the processor time of the process group so far.
func (p *process) cpu() time.Duration {
	sum := time.Duration(0)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is good
	for _, name := range stats {
		if f := statFields(name); len(f) > 14 && f[2] == strconv.Itoa(p.cmd.Process.Pid) {
			sum += ticks(f[11]) + ticks(f[12])
		}
	}
	return sum
}

// statFields are the fields of /proc/PID/stat after the command's name, state first.
func statFields(name string) []string {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil // it ended meanwhile
	}
	text := string(raw)
	return strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
}

// ticks reads a time in hundredths of a second, which is Linux' unit for user programs everywhere.
func ticks(s string) time.Duration {
	n, _ := strconv.ParseInt(s, 10, 64) // the kernel writes numbers
	return time.Duration(n) * 10 * time.Millisecond
}

// machineTime is the processor time of the whole machine so far: busy and all. What runs at a low priority is
// left out of the former: it stands back for what is measured.
func machineTime() (busy, all time.Duration) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	for i, f := range strings.Fields(line) {
		if i == 0 || i > 8 {
			continue // its name; guests are part of user time
		}
		t := ticks(f)
		all += t
		if i != 2 && i != 4 && i != 5 { // nice, idle, waiting for a disk
			busy += t
		}
	}
	return busy, all
}

// ownTime is this process' processor time.
func ownTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// freePorts finds ports that nothing listens on.
func freePorts(ctx context.Context, n int) ([]int, error) {
	var ports []int
	for range n {
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close() //nolint:errcheck // nothing was served from it
		ports = append(ports, ln.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// until asks ready every while until it is, the process has ended or the time is over.
func until(ctx context.Context, limit time.Duration, p *process, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.gone:
			return fmt.Errorf("%s ended while starting; see %s", p.name, p.log)
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; see %s", p.name, err, p.log)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
