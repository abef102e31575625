package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/internal/proc"
)

// router is a kvpilot serve.
type router struct {
	*proc.Process
	http, grpc, admin, gossip, rpc string
}

// resident and peak are the resident memory now and at most since resetPeak, in MiB; 0 when the process is gone.
func (r *router) resident() int64 { return r.status("VmRSS") }
func (r *router) peak() int64     { return r.status("VmHWM") }

// resetPeak starts peak again.
func (r *router) resetPeak() {
	// Where the kernel refuses it, the peak is that since the start, which is stricter.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", r.PID), []byte("5"), 0)
}

func (r *router) status(field string) int64 {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(r.PID), "status"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64) // the kernel writes numbers
			return kb >> 10
		}
	}
	return 0
}
