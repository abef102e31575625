package fleet

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/test/stack"
)

// dial is a connection to a router until the test ends.
func dial(t *testing.T, r *stack.Stack) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(r.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// replicasOf is the service of a router that lists and changes its replicas.
func replicasOf(t *testing.T, r *stack.Stack) kvpilotv1.ReplicaServiceClient {
	t.Helper()
	return kvpilotv1.NewReplicaServiceClient(dial(t, r))
}

// stateOf is a replica's state as a router sees it; unspecified when it has none of this name.
func stateOf(t *testing.T, r *stack.Stack, id string) kvpilotv1.ReplicaState {
	t.Helper()
	out, err := replicasOf(t, r).Get(t.Context(), &kvpilotv1.GetRequest{ReplicaId: id})
	if err != nil {
		return kvpilotv1.ReplicaState_REPLICA_STATE_UNSPECIFIED
	}
	return out.GetReplica().GetState()
}

func waitFor(t *testing.T, r *stack.Stack, id string, want kvpilotv1.ReplicaState) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s is %v", id, want), func() bool { return stateOf(t, r, id) == want })
}

const (
	isReady    = kvpilotv1.ReplicaState_REPLICA_STATE_READY
	isDraining = kvpilotv1.ReplicaState_REPLICA_STATE_DRAINING
	isUnknown  = kvpilotv1.ReplicaState_REPLICA_STATE_UNSPECIFIED
)

func TestADrainOutlivesTheRouterThatMadeIt(t *testing.T) {
	stack.Aside(t)
	routers := start(t, 2)
	list, err := replicasOf(t, routers[0]).List(t.Context(), &kvpilotv1.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	first, second := list.GetReplicas()[0].GetReplicaId(), list.GetReplicas()[1].GetReplicaId()
	drain := func(r *stack.Stack, id string, undo bool) {
		t.Helper()
		var err error
		if undo {
			_, err = replicasOf(t, r).Undrain(t.Context(), &kvpilotv1.UndrainRequest{ReplicaId: id})
		} else {
			_, err = replicasOf(t, r).Drain(t.Context(), &kvpilotv1.DrainRequest{ReplicaId: id, Force: true, Reason: "new driver"})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	drain(routers[0], first, false)
	drain(routers[0], second, false)
	waitFor(t, routers[1], first, isDraining)
	waitFor(t, routers[1], second, isDraining)
	routers[0].Stop()
	drain(routers[1], second, true) // while the first router is away
	again := startOne(t, "restarted", routers[1:])
	waitFor(t, again, first, isDraining)
	waitFor(t, again, second, isReady)
	got, err := replicasOf(t, again).Get(t.Context(), &kvpilotv1.GetRequest{ReplicaId: first})
	if d := got.GetReplica().GetDrain(); err != nil || d.GetReason() != "new driver" || d.GetSince() == nil {
		t.Errorf("a router that joined later shows the drain as %v, %v", d, err)
	}
	if got := stateOf(t, routers[1], second); got != isReady {
		t.Errorf("a restarted router brought a drain back: %v", got)
	}
	drain(again, first, true)
	waitFor(t, routers[1], first, isReady)
}

func TestARegistrationServesOnAllRouters(t *testing.T) {
	stack.Aside(t)
	routers := start(t, 2)
	more := stack.Start(t, stack.Options{Replicas: 1}) // for its replica
	register := func(r *stack.Stack) {
		t.Helper()
		_, err := replicasOf(t, r).Register(t.Context(), &kvpilotv1.RegisterRequest{ReplicaId: "late", Url: more.Replicas[0], Lease: durationpb.New(60e9)})
		if err != nil {
			t.Fatal(err)
		}
	}
	register(routers[0])
	waitFor(t, routers[1], "late", isReady)
	again := startOne(t, "third", routers)
	waitFor(t, again, "late", isReady)
	register(again) // a renewal, of whichever router the caller reaches
	if _, err := replicasOf(t, routers[1]).Deregister(t.Context(), &kvpilotv1.DeregisterRequest{ReplicaId: "late"}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, routers[0], "late", isUnknown)
	waitFor(t, again, "late", isUnknown)
}

// respond asks for a response, and returns its id and the replica that stores it.
func respond(t *testing.T, r *stack.Stack, previous string) (id, at string) {
	t.Helper()
	resp, err := http.Post("http://"+r.HTTP+"/v1/responses", "application/json", strings.NewReader(fmt.Sprintf(`{"model":"sim","input":"more","max_output_tokens":2,"previous_response_id":%s}`, previous)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(text, &out); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", resp.Status, text)
	}
	return out.ID, resp.Header.Get("X-Kvpilot-Replica")
}

func TestAStoredResponseIsContinuedThroughAnyRouter(t *testing.T) {
	stack.Aside(t)
	routers := start(t, 3)
	for range 8 {
		id, at := respond(t, routers[0], "null")
		for _, r := range routers[1:] {
			if _, next := respond(t, r, fmt.Sprintf("%q", id)); next != at {
				t.Errorf("stored at %s and continued at %s", at, next)
			}
		}
	}
	found := 0.0
	for _, r := range routers {
		found += metric(t, r, `kvpilot_peers_pin_questions_total{outcome="found"}`)
	}
	if found == 0 {
		t.Error("no router asked the keeper of a pin")
	}
}
