package link_test

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/peers/link"
	"github.com/kvpilot/kvpilot/server/peers/members"
)

// question is one of 2,048 tokens in blocks of 16.
func question(number uint64) *pb.FrontendEvent {
	keys := make([]uint64, 128)
	for i := range keys {
		keys[i] = number * uint64(i+1) * 0x9e3779b97f4a7c15
	}
	return &pb.FrontendEvent{Event: &pb.FrontendEvent_Ask{Ask: &pb.Ask{
		Number: number, Id: "0123456789abcdef01234567", Model: "meta-llama/Llama-3.1-8B-Instruct", Tenant: "tenant", PromptTokens: 2048,
		Keys: []*pb.BlockKeys{{BlockSize: 16, Keys: keys}},
	}}}
}

// choosing is a decider that answers each question with a choice, and records nothing.
type choosing struct{ node *node }

func (*choosing) Up(string)   {}
func (*choosing) Down(string) {}
func (c *choosing) Event(from string, e *pb.FrontendEvent) {
	c.node.SendReply(from, &pb.DeciderReply{Reply: &pb.DeciderReply_Chosen{Chosen: &pb.Chosen{
		Number: e.GetAsk().GetNumber(), ReplicaId: "replica-1", Policy: "predicted_time", Reason: "prefix", BlockSize: 16, GpuTokens: 1024,
		UncachedTokens: 1024, PrefillS: 0.1, TtftS: 0.2, TpotS: 0.01, Cost: 0.2, Margin: 0.1, Requests: 3,
	}}})
}

// counting is a frontend that counts replies, and records none.
type counting struct {
	link.Frontend
	slots chan struct{}
	left  *sync.WaitGroup
}

func (c counting) Reply(string, *pb.DeciderReply) {
	<-c.slots
	c.left.Done()
}

// BenchmarkRoundTrip asks and receives a choice, with both routers in this process: cpu-µs/op is the CPU time of both ends, of
// TLS and of the system's calls.
func BenchmarkRoundTrip(b *testing.B) {
	for _, inFlight := range []int{1, 64} {
		b.Run(fmt.Sprintf("inflight-%d", inFlight), func(b *testing.B) {
			slots := make(chan struct{}, inFlight)
			var left sync.WaitGroup
			answers := &choosing{}
			decider := newNode(b, "0000000b", fleetKey, func(p *link.Params) { p.Decider = answers })
			answers.node = decider
			start(b, decider, "127.0.0.1:0")
			frontend := run(b, "0000000a", func(p *link.Params) {
				p.Frontend = counting{p.Frontend, slots, &left}
			})
			frontend.SetMembers([]members.Member{member(decider.id, decider.at)})
			eventually(b, 5*time.Second, "the link is up", func() bool { return len(frontend.Peers()) == 1 })
			ask := question(1)
			b.ReportAllocs()
			b.ResetTimer()
			began := cpu(b)
			for range b.N {
				slots <- struct{}{}
				left.Add(1)
				frontend.SendEvent(decider.id, ask)
			}
			left.Wait()
			b.ReportMetric(float64((cpu(b)-began).Nanoseconds())/1000/float64(b.N), "cpu-µs/op")
		})
	}
}

// cpu is the CPU time of this process.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
