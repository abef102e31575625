package grpcapi_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// prompt is a request with n ids that begin with first.
func prompt(first uint32, n int) *kvpilotv1.ChooseReplicaRequest {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = first + uint32(i)
	}
	return &kvpilotv1.ChooseReplicaRequest{Model: "m", Prompt: &kvpilotv1.ChooseReplicaRequest_TokenIds{TokenIds: &kvpilotv1.TokenIds{Ids: ids}}}
}

// A list that is used again has the ids of its new message, of whatever length, and no others.
func TestListsOfIDsAreUsedAgain(t *testing.T) {
	for i, n := range []int{8192, 16 << 10, 3000, 16<<10 + 1, 8191, 1, 8192} {
		want, got := prompt(uint32(i*100_000), n), &kvpilotv1.ChooseReplicaRequest{}
		if err := messages.Decode(wireOf(t, want), got); err != nil || !proto.Equal(got, want) {
			t.Fatalf("%d ids: %v, equal %t", n, err, proto.Equal(got, want))
		}
		messages.Done(got)
	}
	messages.Done(&kvpilotv1.ChooseReplicaRequest{})
	messages.Done(&kvpilotv1.TokenizeRequest{})
}

// Ids that outlive their call are not used again.
func TestIDsThatAreInUseStay(t *testing.T) {
	for name, change := range map[string]func(*kvpilotv1.ChooseReplicaRequest){
		"the answer has them":       func(m *kvpilotv1.ChooseReplicaRequest) { m.ReturnTokenIds = true },
		"a repeated request's does": func(m *kvpilotv1.ChooseReplicaRequest) { m.RequestId = "r" },
	} {
		want, got := prompt(7, 8192), &kvpilotv1.ChooseReplicaRequest{}
		change(want)
		if err := messages.Decode(wireOf(t, want), got); err != nil {
			t.Fatal(err)
		}
		messages.Done(got)
		for i := range 10 {
			if err := messages.Decode(wireOf(t, prompt(uint32(i), 8192)), &kvpilotv1.ChooseReplicaRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		if !proto.Equal(got, want) {
			t.Errorf("%s: they have changed", name)
		}
	}
}

// mirror answers with the ids that it was asked with, and fails when they change while it has them.
type mirror struct{ fakeRouter }

// Choose implements grpcapi.Router.
func (*mirror) Choose(_ context.Context, q *intake.Question) (*router.Answer, error) {
	first := q.IDs[0]
	for range 20 {
		for i, id := range q.IDs {
			if id != first+uint32(i) {
				return nil, errors.New("the ids have changed")
			}
		}
	}
	return &router.Answer{
		Choice:   &chooser.Choice{Decision: &decision.Decision{Request: decision.Request{ID: "d"}, Ranks: decision.Ranks{Chosen: -1}}, Replica: &replica.Replica{ID: "r"}},
		Encoding: &tokenizer.Encoding{IDs: q.IDs},
	}, nil
}

func TestCallersDoNotGetTheIDsOfOthers(t *testing.T) {
	api := newRig(t, grpcapi.DefaultConfig(), func(p *grpcapi.Params) { p.Router = &mirror{} }).api
	memory := bufconn.Listen(1 << 20)
	routing := serveGuarded(t, api, memory, func(ctx context.Context, _ string) (net.Conn, error) { return memory.DialContext(ctx) }).Routing()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	failed := make(chan error, 8)
	for caller := range cap(failed) {
		go func() {
			for i := range 30 {
				ask := prompt(uint32(caller*1_000_000+i), 4000+caller)
				ask.ReturnTokenIds = i%2 == 0
				out, err := routing.ChooseReplica(ctx, ask, grpc.WaitForReady(true))
				if err == nil && ask.ReturnTokenIds && !slices.Equal(out.GetTokenIds().GetIds(), ask.GetTokenIds().GetIds()) {
					err = errors.New("the answer has the ids of another caller")
				}
				if err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
	}
	for range cap(failed) {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}
