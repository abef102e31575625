package forward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/peers/identity"
	"github.com/kvpilot/kvpilot/server/peers/members"
)

// Routers is this router and the others, as members and over their links.
type Routers interface {
	// Self is this router as a member.
	Self() members.Member
	// Others lists the other members.
	Others() []members.Member
	// Conn is the connection to a member; ok is false unless the link to it is up.
	Conn(id string) (conn grpc.ClientConnInterface, ok bool)
	// Decider is the id of the router that decides for a model.
	Decider(model string) string
	// Requests counts the requests in flight that came to this router.
	Requests() int
	// Able reports whether this router is fit to decide for others.
	Able() bool
}

// Fleet is this router's view of the others.
type Fleet struct{ routers Routers }

// New makes a Fleet.
func New(r Routers) *Fleet { return &Fleet{r} }

// Peer is another router that can be asked.
type Peer struct {
	ID, Name string
	Routing  kvpilotv1.RoutingServiceClient
	Router   kvpilotv1.RouterServiceClient
}

func peerOf(id, name string, conn grpc.ClientConnInterface) *Peer {
	return &Peer{ID: id, Name: cmp.Or(name, id), Routing: kvpilotv1.NewRoutingServiceClient(conn), Router: kvpilotv1.NewRouterServiceClient(conn)}
}

// Self is this router.
func (f *Fleet) Self() members.Member { return f.routers.Self() }

// Members lists the other routers, those included that cannot be asked.
func (f *Fleet) Members() []members.Member {
	if f == nil {
		return nil
	}
	return f.routers.Others()
}

// Requests counts the requests in flight that came to this router.
func (f *Fleet) Requests() int { return f.routers.Requests() }

// Able reports whether this router is fit to decide for others.
func (f *Fleet) Able() bool { return f.routers.Able() }

// Peer returns the router with an id, nil when it is this one or cannot be asked.
func (f *Fleet) Peer(id string) *Peer {
	if f == nil || id == "" || id == f.routers.Self().ID {
		return nil
	}
	conn, ok := f.routers.Conn(id)
	if !ok {
		return nil
	}
	for _, m := range f.routers.Others() {
		if m.ID == id {
			return peerOf(id, m.Name, conn)
		}
	}
	return peerOf(id, "", conn)
}

// idDigits is the length of a router's id, with which the ids of its decisions begin.
const idDigits = 8

// OwnerID is the id of the router that made a decision or reservation, or empty if the id has none.
func OwnerID(id string) string {
	if len(id) <= idDigits || !identity.IsID(id[:idDigits]) {
		return ""
	}
	return id[:idDigits]
}

// Owner returns the router that made a decision or reservation: nil when it is this one or no living member. err is set when it is a
// living member that cannot be asked now, or at all because it has another wire version.
func (f *Fleet) Owner(id string) (peer *Peer, err error) {
	if f == nil {
		return nil, nil
	}
	owner := OwnerID(id)
	if owner == "" || owner == f.routers.Self().ID {
		return nil, nil
	}
	for _, m := range f.routers.Others() {
		if m.ID != owner || m.State == members.Dead {
			continue
		}
		if m.State == members.Stranger {
			return nil, apierror.New(apierror.RouterUnreachable, fmt.Sprintf("the router that made the reservation has wire version %d, which this one cannot ask: retry, so that another router gets the call", m.WireMajor), nil, apierror.WithRetryAfter(time.Second))
		}
		if conn, ok := f.routers.Conn(owner); ok {
			return peerOf(owner, m.Name, conn), nil
		}
		return nil, unreachable(nil)
	}
	return nil, nil
}

// Decider is the id of the router that decides for a model; empty without a fleet.
func (f *Fleet) Decider(model string) string {
	if f == nil {
		return ""
	}
	return f.routers.Decider(model)
}

// Others are the living routers that can be asked, and the names of the living ones that cannot, routers of another wire version included.
func (f *Fleet) Others() (list []*Peer, silent []string) {
	if f == nil {
		return nil, nil
	}
	for _, m := range f.routers.Others() {
		if m.State == members.Dead {
			continue
		}
		if conn, ok := f.routers.Conn(m.ID); ok && m.State == members.Alive {
			list = append(list, peerOf(m.ID, m.Name, conn))
		} else {
			silent = append(silent, cmp.Or(m.Name, m.ID))
		}
	}
	return list, silent
}

// Patience is how long a question to other routers may take.
const Patience = 500 * time.Millisecond

// Answer is one router's answer.
type Answer[T any] struct {
	From *Peer
	Says T
}

// Gather asks each peer at once and returns the answers that come within Patience, in the order of peers, and the names of the
// peers that gave none.
func Gather[T any](ctx context.Context, peers []*Peer, ask func(context.Context, *Peer) (T, error)) (answers []Answer[T], silent []string) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	says, failed := make([]T, len(peers)), make([]error, len(peers))
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() { says[i], failed[i] = ask(ctx, p) })
	}
	wg.Wait()
	for i, p := range peers {
		if failed[i] == nil {
			answers = append(answers, Answer[T]{p, says[i]})
		} else if !isPublic(failed[i]) { // a fault of the question is an answer: nothing
			silent = append(silent, p.Name)
		}
	}
	slices.Sort(silent)
	return answers, silent
}

// Error is the public form of an error that asking another router gave: its own, or that it did not answer.
func Error(err error) error {
	if err == nil || isPublic(err) || errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled {
		return err
	}
	return unreachable(err)
}

// IsUnreachable reports whether Error says that the router did not answer.
func IsUnreachable(err error) bool {
	e, ok := errors.AsType[*apierror.Error](err)
	return ok && e.Reason == apierror.RouterUnreachable
}

func unreachable(cause error) error {
	return apierror.New(apierror.RouterUnreachable, "the router that made the reservation does not answer: retry", cause, apierror.WithRetryAfter(time.Second))
}

// isPublic reports whether another router gave the error to its caller, as opposed to a call that did not reach it.
func isPublic(err error) bool {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason() != apierror.Name(apierror.ShuttingDown)
		}
	}
	return false
}
