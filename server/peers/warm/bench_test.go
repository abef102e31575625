//go:build unix

package warm

import (
	"syscall"
	"testing"
	"time"
)

// BenchmarkWarmStart measures how long a router that has just started takes until 64 ranks are exact, when a peer knows 10
// million blocks of them and the engines' rings no longer do. Peer and engines run on the same processors.
//
//	go test -run '^$' -bench WarmStart -benchtime 1x ./server/peers/warm
func BenchmarkWarmStart(b *testing.B) {
	const ranks, batches, blocks = 64, 40, 3907
	engines, old := peerOf(b, ranks, batches, blocks)
	at := old.serve(b, "old")
	b.ResetTimer()
	before := cpuTime(b)
	for range b.N {
		next := startRouter(b, at)
		next.follow(b, engines)
		for !next.exact(ranks, total(engines)) {
			time.Sleep(time.Millisecond)
		}
		b.ReportMetric(float64(next.index.Stats().Blocks), "blocks")
		b.Log(next.log.String())
	}
	b.ReportMetric((cpuTime(b)-before).Seconds()/float64(b.N), "cpu-s/op")
}

// cpuTime is what this process has used of its processors: of both routers and of the engines.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
