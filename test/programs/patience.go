package programs

import (
	"fmt"
	"os"
	"runtime"
	"time"
)

// Patient is how long a thing may take on this machine now that takes d at most on a quiet one: longer by as many times as more programs
// want a processor than there are processors. Without /proc/loadavg it is d.
func Patient(d time.Duration) time.Duration {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return d
	}
	var wanting float64
	if _, err := fmt.Sscan(string(text), &wanting); err != nil {
		return d
	}
	return time.Duration(float64(d) * max(1, wanting/float64(runtime.NumCPU())))
}
