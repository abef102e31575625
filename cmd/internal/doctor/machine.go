package doctor

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/server"
	"github.com/kvpilot/kvpilot/server/kit/memlimit"
)

// machine has the limits of this process. Tests make their own.
type machine interface {
	Files() (n uint64, known bool)
	Memory(c memlimit.Config) memlimit.Limit
	Processors() int
	// Read returns a file of /proc or /sys, empty when there is none.
	Read(name string) string
}

// thisMachine is the machine that runs the process.
type thisMachine struct{}

func (thisMachine) Files() (uint64, bool)                   { return server.MaxFiles() }
func (thisMachine) Memory(c memlimit.Config) memlimit.Limit { return memlimit.Find(c) }
func (thisMachine) Processors() int                         { return runtime.GOMAXPROCS(0) }

func (thisMachine) Read(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// The least of each limit with which a router serves a thousand streams.
const (
	fewFiles   = 4096
	fewPorts   = 10_000
	fewBacklog = 1024
)

// checkLimits compares the limits of the process with the router's needs.
func checkLimits(_ context.Context, in scope) (list []Finding) {
	m := in.machine
	var seen []string
	if files, known := m.Files(); known {
		seen = append(seen, fmt.Sprintf("%d files", files))
		if files < fewFiles {
			list = append(list, fault(Warn, "open files", fmt.Sprintf("at least %d: two for each stream", fewFiles), strconv.FormatUint(files, 10),
				"raise it: LimitNOFILE=65536 in the systemd unit, ulimit -n in a shell, --ulimit nofile for docker run")...)
		}
	}
	free := m.Memory(memlimit.Config{})
	seen = append(seen, m.Memory(in.conf.Memory).String())
	if set := int64(in.conf.Memory.MaxBytes); set > 0 && free.Bytes > 0 && set > roomIn(free) {
		list = append(list, fault(Fail, "memory.max_bytes", "at most what this process may take", fmt.Sprintf("%d bytes are set, and the %s has %d", set, free.From, roomIn(free)),
			"set memory.max_bytes: 0 (the limit is found at the start), or raise the container's memory limit: else the kernel ends the router")...)
	}
	if quota, limited := cpuQuota(m.Read("/sys/fs/cgroup/cpu.max")); limited && float64(m.Processors()) > quota+1 {
		list = append(list, fault(Warn, "GOMAXPROCS", fmt.Sprintf("about the %.4g processors that the control group allows", quota), strconv.Itoa(m.Processors()),
			"remove GOMAXPROCS from the environment (Go finds the limit by itself), or raise the container's CPU limit: else the router is stopped for parts of every 100 ms")...)
	}
	seen = append(seen, fmt.Sprintf("%d processors", m.Processors()))
	var low, high int
	if n, _ := fmt.Sscan(m.Read("/proc/sys/net/ipv4/ip_local_port_range"), &low, &high); n == 2 && high-low < fewPorts {
		list = append(list, fault(Warn, "local ports", fmt.Sprintf("at least %d for connections to replicas", fewPorts), fmt.Sprintf("%d to %d", low, high), "sysctl -w net.ipv4.ip_local_port_range='1024 65000'")...)
	}
	if backlog, err := strconv.Atoi(m.Read("/proc/sys/net/core/somaxconn")); err == nil && backlog < fewBacklog {
		list = append(list, fault(Warn, "net.core.somaxconn", fmt.Sprintf("at least %d connections that wait to be accepted", fewBacklog), strconv.Itoa(backlog), "sysctl -w net.core.somaxconn=4096, before kvpilot starts")...)
	}
	if len(list) > 0 {
		return list
	}
	return []Finding{ok("", "%s", strings.Join(seen, ", "))}
}

// roomIn is the whole memory that a limit was taken from: of a machine, three quarters are proposed.
func roomIn(l memlimit.Limit) int64 {
	if l.From == "machine" {
		return l.Bytes / 3 * 4
	}
	return l.Bytes
}

// cpuQuota reads the processors that a control group allows: "200000 100000" is two, "max 100000" no limit.
func cpuQuota(text string) (processors float64, limited bool) {
	var quota, period float64
	if n, _ := fmt.Sscan(text, &quota, &period); n < 2 || period <= 0 {
		return 0, false
	}
	return quota / period, true
}
