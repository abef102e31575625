package doctor

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kvpilot/kvpilot/client"
	pb "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// seen is a router's view without a fault.
func seen() *view {
	one := func(id string) *pb.Replica {
		return &pb.Replica{
			ReplicaId: id, State: pb.ReplicaState_REPLICA_STATE_READY, Since: timestamppb.Now(), Version: "0.33.0", BlockSize: 16, Blocks: 1000,
			Models: []*pb.ReplicaModel{{Id: "m", MaxModelLen: 4096}}, Breaker: pb.BreakerState_BREAKER_STATE_CLOSED,
			Ranks: []*pb.ReplicaRank{{Feed: pb.FeedState_FEED_STATE_EXACT}, {Rank: 1, Feed: pb.FeedState_FEED_STATE_EXACT}},
		}
	}
	router := func(name string) *pb.Router {
		return &pb.Router{Name: name, State: pb.RouterState_ROUTER_STATE_ALIVE, Connected: true, Report: &pb.RouterReport{Version: "1.0"}}
	}
	return &view{
		RemoteParams: RemoteParams{Version: "1.0", Address: "router:9090"},
		status:       &pb.GetStatusResponse{Time: timestamppb.Now(), Version: "1.0", Parity: []*pb.TokenParity{{Model: "m", State: pb.ParityState_PARITY_STATE_PROVEN}}},
		replicas:     []*pb.Replica{one("a"), one("b")},
		routers:      []*pb.Router{router("x"), router("y")},
	}
}

func TestWhatARouterSees(t *testing.T) {
	b := func(change func(*pb.Replica)) func(*view) { return func(v *view) { change(v.replicas[1]) } }
	y := func(change func(*pb.Router)) func(*view) { return func(v *view) { change(v.routers[1]) } }
	for name, tc := range map[string]struct {
		change func(*view)
		check  string
		want   want
	}{
		"nothing is wrong": {func(*view) {}, "", want{}},
		"unhealthy":        {b(func(r *pb.Replica) { r.State, r.LastError = pb.ReplicaState_REPLICA_STATE_UNHEALTHY, "refused" }), "replicas", want{Fail, "b", "unhealthy", "kvpilot doctor"}},
		"draining":         {b(func(r *pb.Replica) { r.State = pb.ReplicaState_REPLICA_STATE_DRAINING }), "replicas", want{Warn, "b", "draining", "undrain b"}},
		"breaker":          {b(func(r *pb.Replica) { r.Breaker = pb.BreakerState_BREAKER_STATE_OPEN }), "replicas", want{Fail, "b", "breaker", "drain b"}},
		"version":          {b(func(r *pb.Replica) { r.Version = "0.32.0" }), "version", want{Warn, "m", "0.32.0 on b", "one vLLM version"}},
		"context":          {b(func(r *pb.Replica) { r.Models[0].MaxModelLen = 2048 }), "models", want{Fail, "m", "2048 on b", "--max-model-len"}},
		"adapter":          {b(func(r *pb.Replica) { r.Models = append(r.Models, &pb.ReplicaModel{Id: "t", Parent: "m"}) }), "models", want{Warn, "m", "t on b", "load"}},
		"blocks":           {b(func(r *pb.Replica) { r.Blocks = 0 }), "metrics", want{Warn, "b", "blocks 0", "blocks of the replica"}},
		"cold":             {b(func(r *pb.Replica) { r.Ranks[1].Feed = pb.FeedState_FEED_STATE_COLD }), "events", want{Fail, "b/1", "cold", "PUB socket"}},
		"degraded":         {b(func(r *pb.Replica) { r.Ranks[0].Feed = pb.FeedState_FEED_STATE_DEGRADED }), "events", want{Warn, "b/0", "degraded", "buffer_steps"}},
		"a foreign replay": {b(func(r *pb.Replica) {
			r.Ranks[0].Feed, r.Ranks[0].FeedError = pb.FeedState_FEED_STATE_DEGRADED, "the replay socket belongs to another engine than the event socket"
		}), "events", want{Fail, "b/0", "another engine", "set events.replay of this replica"}},
		"no events":           {b(func(r *pb.Replica) { r.Ranks[0].Feed = pb.FeedState_FEED_STATE_NONE }), "events", want{Warn, "b/0", "none", "--kv-events-config"}},
		"suspect":             {func(v *view) { v.status.Parity[0].State = pb.ParityState_PARITY_STATE_SUSPECT }, "tokens", want{Fail, "m", "", "docs/tokenization.md"}},
		"a full index":        {func(v *view) { v.status.Index = &pb.IndexStatus{Cut: true} }, "index", want{Warn, "", "left out", "kvindex.max_bytes"}},
		"another wire":        {y(func(r *pb.Router) { r.State = pb.RouterState_ROUTER_STATE_STRANGER }), "peers", want{Fail, "y", "wire version", "update"}},
		"a dead router":       {y(func(r *pb.Router) { r.State = pb.RouterState_ROUTER_STATE_DEAD }), "peers", want{Fail, "y", "does not answer", "network"}},
		"no link":             {y(func(r *pb.Router) { r.Connected = false }), "peers", want{Fail, "y", "gossip", "fleet.rpc_listen"}},
		"another version":     {y(func(r *pb.Router) { r.Report.Version = "0.9" }), "peers", want{Warn, "y", "0.9", "update"}},
		"one that is unready": {y(func(r *pb.Router) { r.Report.NotReady = "leaving" }), "peers", want{Fail, "y", "leaving", "--server"}},
		"no replicas":         {func(v *view) { v.replicas = nil }, "replicas", want{Fail, "", "knows none", "registry.replicas"}},
	} {
		t.Run(name, func(t *testing.T) {
			v := seen()
			tc.change(v)
			var results []Result
			for name, run := range map[string]func() []Finding{
				"replicas": v.states, "version": v.versions, "models": v.models, "metrics": v.caches, "tokens": v.parity, "events": v.feeds, "index": v.index, "peers": v.peers,
			} {
				c := check{name: name, run: func(context.Context, scope) []Finding { return run() }}
				results = append(results, c.once(t.Context(), scope{}, time.Minute))
			}
			wants := map[string]want{}
			if tc.check != "" {
				wants[tc.check] = tc.want
			}
			judge(t, results, wants)
		})
	}
}

func TestNoRouter(t *testing.T) {
	for words, err := range map[string]error{"listen.grpc": errors.New("refused"), "KVPILOT_KEY": status.Error(codes.Unauthenticated, "a key is needed")} {
		results := Remote(t.Context(), RemoteParams{Limit: time.Minute, Ask: func(context.Context, func(context.Context, *client.Client) error) error { return err }})
		judge(t, results, map[string]want{"router": {Fail, "", "", words}})
		for _, r := range results[1:] {
			if r.Status != Skip {
				t.Errorf("%+v", r)
			}
		}
	}
}
