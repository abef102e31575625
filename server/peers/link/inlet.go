package link

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/peers/identity"
	"github.com/kvpilot/kvpilot/server/peers/members"
	"github.com/kvpilot/kvpilot/server/peers/refusals"
)

// inlet is the decider's half of a link: the peer has dialed.
type inlet struct {
	links   *Links
	id      string
	stream  grpc.BidiStreamingServer[pb.DecideRequest, pb.DecideResponse]
	waiting *queue[*pb.DeciderReply]
	down    chan struct{} // closed when Decider.Down has returned
}

// Decide implements pb.DecideServiceServer. The calling goroutine writes; the goroutine that it starts reads, and outlives it for as long
// as grpc-go needs to end a stream.
func (l *Links) Decide(stream grpc.BidiStreamingServer[pb.DecideRequest, pb.DecideResponse]) error {
	i := &inlet{links: l, id: identity.PeerID(stream.Context()), stream: stream, waiting: newQueue(sizeOfReply), down: make(chan struct{})}
	introduced := make(chan error, 1)
	l.running.Go(func() { i.read(introduced) })
	timer := time.NewTimer(introduction)
	defer timer.Stop()
	select {
	case err := <-introduced:
		if err != nil {
			return err
		}
	case <-timer.C:
		return status.Error(codes.DeadlineExceeded, "no Hello was received")
	}
	return i.write()
}

// read takes the peer's introduction and then its messages.
func (i *inlet) read(introduced chan<- error) {
	l := i.links
	first, err := i.stream.Recv()
	if err == nil {
		err = l.admit(i.id, first)
	}
	if err != nil {
		introduced <- err
		return
	}
	if !l.enter(i) {
		introduced <- status.Error(codes.Unavailable, "the router is shutting down")
		return
	}
	i.waiting.push(&pb.DeciderReply{Reply: &pb.DeciderReply_Welcome{Welcome: &pb.Welcome{
		RouterId: l.params.ID, Name: l.params.Name, WireMajor: l.params.WireMajor, WireMinor: members.WireMinor, Ability: l.params.Able.Ability(),
	}}})
	introduced <- nil
	l.params.Decider.Up(i.id)
	events := first.GetEvents()[1:]
	for {
		for _, event := range events {
			l.params.Decider.Event(i.id, event)
		}
		l.metrics.events.received(len(events))
		in, err := i.stream.Recv()
		if err != nil {
			break
		}
		if err := l.rules.Validate(in); err != nil {
			l.params.Refused.Refuse(refusals.Malformed, i.id, "a router does not follow the contract", "error", err)
			break
		}
		events = in.GetEvents()
	}
	l.mu.Lock()
	if l.inlets[i.id] == i {
		delete(l.inlets, i.id)
	}
	l.mu.Unlock()
	i.waiting.close()
	l.params.Decider.Down(i.id)
	close(i.down)
}

// admit checks a peer's introduction.
func (l *Links) admit(certified string, in *pb.DecideRequest) error {
	refuse := func(reason refusals.Reason, message string, attrs ...any) error {
		l.params.Refused.Refuse(reason, certified, message, attrs...)
		return status.Error(codes.FailedPrecondition, message)
	}
	if err := l.rules.Validate(in); err != nil || len(in.GetEvents()) == 0 || in.GetEvents()[0].GetHello() == nil {
		return refuse(refusals.Malformed, "a router does not follow the contract")
	}
	hello := in.GetEvents()[0].GetHello()
	switch {
	case hello.GetRouterId() != certified || certified == l.params.ID:
		return refuse(refusals.Identity, "a router says that it is another one than its certificate says", "says", hello.GetRouterId(), "name", hello.GetName())
	case hello.GetCalleeId() != l.params.ID:
		return refuse(refusals.Address, "a router means to reach another one than this", "means", hello.GetCalleeId(), "name", hello.GetName())
	case hello.GetWireMajor() != l.params.WireMajor:
		return refuse(refusals.Wire, "a router of another wire version is not used", "wire", hello.GetWireMajor(), "own", l.params.WireMajor, "name", hello.GetName())
	}
	return nil
}

// enter makes i the inlet of its peer, after the one before is down. It reports false when Run has ended.
func (l *Links) enter(i *inlet) bool {
	for {
		l.mu.Lock()
		if l.begin == nil {
			l.mu.Unlock()
			return false
		}
		before := l.inlets[i.id]
		if before == nil {
			l.inlets[i.id] = i
			l.mu.Unlock()
			return true
		}
		l.mu.Unlock()
		before.waiting.close() // its writer returns, and with it the stream
		<-before.down
	}
}

// write sends waiting messages until the stream breaks or the queue is closed.
func (i *inlet) write() error {
	out := &pb.DecideResponse{}
	for {
		batch, open := i.waiting.take(out.Replies)
		if !open {
			return status.Error(codes.Aborted, "the link is closed")
		}
		if len(batch) == 0 {
			select {
			case <-i.waiting.wake:
			case <-i.stream.Context().Done():
				return context.Cause(i.stream.Context())
			}
			out.Replies = nil
			continue
		}
		out.Replies = batch
		if err := i.stream.Send(out); err != nil {
			return err
		}
		i.links.metrics.replies.sent(len(batch))
	}
}
