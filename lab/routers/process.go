package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
)

// start runs a command with its output in a log file of its name; it ends with this process.
func start(ctx context.Context, dir, name string, args ...string) (*proc.Process, error) {
	cmd := proc.Command(ctx, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return proc.StartLogged(name, filepath.Join(dir, name+".log"), cmd)
}

// grace is how long a process may take to end: some wait longer than that for nothing.
const grace = 3 * time.Second

// poll is the pause between two looks at a starting process.
const poll = 100 * time.Millisecond

// cpuOf is the processor time of the process groups so far.
func cpuOf(processes []*proc.Process) time.Duration {
	groups := map[string]bool{}
	for _, p := range processes {
		groups[strconv.Itoa(p.PID)] = true
	}
	sum := time.Duration(0)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is good
	for _, name := range stats {
		if f := statFields(name); len(f) > 14 && groups[f[2]] {
			sum += ticks(f[11]) + ticks(f[12])
		}
	}
	return sum
}

// statFields are the fields of /proc/PID/stat after the command's name, state first.
func statFields(name string) []string {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil // it has ended
	}
	text := string(raw)
	return strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
}

// ticks reads a time in hundredths of a second, which is Linux' unit for user programs everywhere.
func ticks(s string) time.Duration {
	n, _ := strconv.ParseInt(s, 10, 64) // the kernel writes numbers
	return time.Duration(n) * 10 * time.Millisecond
}

// machineTime is the processor time of the whole machine so far: busy and all. Work at a low priority is left out
// of the former: it stands back for the measured work.
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
