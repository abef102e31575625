//go:build !unix

package indexbench

import "time"

// cpuTime is not known here.
func cpuTime() time.Duration { return 0 }
