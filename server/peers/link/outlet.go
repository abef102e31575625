package link

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	pb "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/peers/members"
	"github.com/kvpilot/kvpilot/server/peers/refusals"
)

// firstRetry and lastRetry are the pauses before a link is dialed again: they double, and begin again after a link that lasted
// for longer than lastRetry.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// outlet is the frontend's half of a link: this router dials.
type outlet struct {
	links  *Links
	member members.Member
	conn   *grpc.ClientConn
	cancel context.CancelFunc

	// waiting takes events while the link is up, and is nil otherwise; guarded by Links.mu.
	waiting *queue[*pb.FrontendEvent]
}

// newOutlet makes a connection that is dialed when it is used.
func (l *Links) newOutlet(m members.Member) (*outlet, error) {
	conn, err := grpc.NewClient("passthrough:///"+m.Address,
		grpc.WithTransportCredentials(l.params.Identity.Client(m.ID, l.params.Refused)),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(l.metrics.codec()), grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstRetry, Multiplier: 2, Jitter: 0.2, MaxDelay: lastRetry},
			MinConnectTimeout: lastRetry,
		}),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window), grpc.WithIdleTimeout(0), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: clientPing, Timeout: answerPing, PermitWithoutStream: true}),
	)
	if err != nil {
		return nil, err
	}
	return &outlet{links: l, member: m, conn: conn}, nil
}

// run keeps the link until ctx ends.
func (o *outlet) run(ctx context.Context) {
	defer func() { _ = o.conn.Close() }() // it fails when it is closed already
	wait := firstRetry
	for {
		began := time.Now()
		err := o.once(ctx)
		if ctx.Err() != nil {
			return
		}
		o.links.params.Scope.Log().Debug("the link to a router is down", "id", o.member.ID, "address", o.member.Address, "error", err)
		if time.Since(began) > lastRetry {
			wait = firstRetry
		}
		timer := time.NewTimer(wait/2 + rand.N(wait/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		wait = min(2*wait, lastRetry)
	}
}

var (
	errNoWelcome = errors.New("its first message is not Welcome")
	errRefused   = errors.New("it is refused")
	errOverrun   = errors.New("too much was waiting to be sent")
)

// once opens a stream and serves it until it breaks.
func (o *outlet) once(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.AfterFunc(introduction, cancel)
	defer timer.Stop()
	stream, err := pb.NewDecideServiceClient(o.conn).Decide(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	l := o.links
	hello := &pb.Hello{RouterId: l.params.ID, Name: l.params.Name, WireMajor: l.params.WireMajor, WireMinor: members.WireMinor, CalleeId: o.member.ID}
	if err := stream.Send(&pb.DecideRequest{Events: []*pb.FrontendEvent{{Event: &pb.FrontendEvent_Hello{Hello: hello}}}}); err != nil {
		_, err = stream.Recv() // it has the status
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		o.refused(err)
		return err
	}
	welcome := first.GetReplies()[:min(1, len(first.GetReplies()))]
	if len(welcome) == 0 || welcome[0].GetWelcome() == nil {
		l.params.Refused.Refuse(refusals.Malformed, o.member.ID, "a router does not follow the contract", "address", o.member.Address)
		return errNoWelcome
	}
	if !o.admits(welcome[0].GetWelcome()) || !timer.Stop() {
		return errRefused
	}
	return o.serve(stream, cancel, welcome[0].GetWelcome().GetAbility(), first.GetReplies()[1:])
}

// refused records why the peer does not take the link, if it says so.
func (o *outlet) refused(err error) {
	log := o.links.params.Refused
	switch status.Code(err) {
	case codes.FailedPrecondition:
		log.Refuse(refusals.Handshake, o.member.ID, "a router refuses the link with this one", "address", o.member.Address, "error", err)
	case codes.Unimplemented:
		log.Refuse(refusals.Wire, o.member.ID, "a router does not serve this one's wire version and is not used", "address", o.member.Address, "own", o.links.params.WireMajor, "error", err)
	default:
	}
}

// admits reports whether the peer is the router that it should be.
func (o *outlet) admits(w *pb.Welcome) bool {
	l := o.links
	switch {
	case w.GetRouterId() != o.member.ID:
		l.params.Refused.Refuse(refusals.Identity, o.member.ID, "a router says that it is another one than its certificate says", "address", o.member.Address, "says", w.GetRouterId())
	case w.GetWireMajor() != l.params.WireMajor:
		l.params.Refused.Refuse(refusals.Wire, o.member.ID, "a router of another wire version is not used", "address", o.member.Address, "wire", w.GetWireMajor(), "own", l.params.WireMajor)
	default:
		return true
	}
	return false
}

// serve carries messages in both directions until the stream breaks or cancel is called.
func (o *outlet) serve(stream grpc.BidiStreamingClient[pb.DecideRequest, pb.DecideResponse], cancel context.CancelFunc, ability pb.Ability, more []*pb.DeciderReply) error {
	l, id := o.links, o.member.ID
	waiting := newQueue(sizeOfEvent)
	l.mu.Lock()
	o.waiting = waiting
	l.mu.Unlock()
	written := make(chan struct{})
	go func() {
		defer close(written)
		defer cancel()
		o.write(stream, waiting)
	}()
	l.params.Scope.Log().Info("the link to a router is up", "id", id, "address", o.member.Address)
	l.params.Frontend.Up(id, ability)
	err := o.read(stream, more)
	overrun := waiting.isOver()
	l.mu.Lock()
	o.waiting = nil
	l.mu.Unlock()
	cancel()
	waiting.close()
	<-written
	l.params.Frontend.Down(id)
	l.params.Scope.Log().Info("the link to a router is down", "id", id, "address", o.member.Address, "error", err)
	if overrun {
		return errOverrun
	}
	return err
}

func (o *outlet) read(stream grpc.BidiStreamingClient[pb.DecideRequest, pb.DecideResponse], replies []*pb.DeciderReply) error {
	l, id := o.links, o.member.ID
	for {
		for _, reply := range replies {
			l.params.Frontend.Reply(id, reply)
		}
		l.metrics.replies.received(len(replies))
		in, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := l.rules.Validate(in); err != nil {
			l.params.Refused.Refuse(refusals.Malformed, id, "a router does not follow the contract", "error", err)
			return err
		}
		replies = in.GetReplies()
	}
}

// write sends waiting messages until the stream breaks or the queue is closed.
func (o *outlet) write(stream grpc.BidiStreamingClient[pb.DecideRequest, pb.DecideResponse], waiting *queue[*pb.FrontendEvent]) {
	out := &pb.DecideRequest{}
	for {
		batch, open := waiting.take(out.Events)
		if !open {
			return
		}
		if len(batch) == 0 {
			select {
			case <-waiting.wake:
			case <-stream.Context().Done():
				return
			}
			out.Events = nil
			continue
		}
		out.Events = batch
		if stream.Send(out) != nil {
			return // the reader learns why
		}
		o.links.metrics.events.sent(len(batch))
	}
}
