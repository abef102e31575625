package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Memory is the resident memory of a process in bytes: now, and at most since its start or ResetPeak.
func Memory(pid int) (resident, peak int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64) // other lines have no number
		switch name {
		case "VmRSS":
			resident = n << 10
		case "VmHWM":
			peak = n << 10
		}
	}
	if resident == 0 {
		return 0, 0, fmt.Errorf("process %d shows no memory", pid)
	}
	return resident, peak, nil
}

// ResetPeak starts the peak of a process's memory again.
func ResetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}
