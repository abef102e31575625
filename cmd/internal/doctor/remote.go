package doctor

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
)

// RemoteParams is the input of Remote.
type RemoteParams struct {
	// Address is the router's, for messages.
	Address string
	// Version is this program's.
	Version string
	// Ask calls do with a connection to the router.
	Ask func(ctx context.Context, do func(context.Context, *client.Client) error) error
	// Limit bounds each check.
	Limit time.Duration
}

// view is how a router sees its fleet.
type view struct {
	RemoteParams
	status   *kvpilotv1.GetStatusResponse
	replicas []*kvpilotv1.Replica
	routers  []*kvpilotv1.Router
}

// Remote reports how a running router sees its replicas and the other routers.
func Remote(ctx context.Context, p RemoteParams) []Result {
	v := &view{RemoteParams: p}
	after := func(name, what string, run func() []Finding) check {
		return check{name: name, what: what, needs: []string{"router"}, run: func(context.Context, scope) []Finding { return run() }}
	}
	return examine(ctx, &setup{}, []check{
		{name: "router", what: "Does the router answer, and take requests?", run: func(ctx context.Context, _ scope) []Finding { return v.router(ctx) }},
		after("replicas", "Does the router send requests to every replica?", v.states),
		after("version", "Are the versions of vLLM tested ones, and equal in a pool?", v.versions),
		after("models", "Do the replicas of a pool serve the same adapters and context length?", v.models),
		after("metrics", "Does the router know the size of blocks and caches?", v.caches),
		after("tokens", "Are the router's token ids those of the engines?", v.parity),
		after("events", "Does the index know what each rank holds?", v.feeds),
		after("index", "Has the index room for all blocks?", v.index),
		after("peers", "Do the routers of the fleet see each other, and have they one version?", v.peers),
	}, p.Limit)
}

// router asks for everything that the other checks look at.
func (v *view) router(ctx context.Context) []Finding {
	began := time.Now()
	var took time.Duration
	err := v.Ask(ctx, func(ctx context.Context, c *client.Client) (err error) {
		if v.status, err = c.Router().GetStatus(ctx, &kvpilotv1.GetStatusRequest{}); err != nil {
			return err
		}
		took = time.Since(began)
		if v.replicas, err = c.ListReplicas(ctx, ""); err != nil {
			return err
		}
		all, err := c.Router().ListRouters(ctx, &kvpilotv1.ListRoutersRequest{})
		v.routers = all.GetRouters()
		return err
	})
	if err != nil {
		change := "is it the gRPC address (listen.grpc, 9090 by default), and reachable from here? --tls or --ca where it uses TLS"
		switch status.Code(err) { //nolint:exhaustive // the others are about the connection
		case codes.Unauthenticated, codes.PermissionDenied:
			change = "give a key with the role observe or admin: --key, or the variable KVPILOT_KEY"
		}
		seen, _, _ := strings.Cut(oneLine(err), "; set --address")
		return fault(Fail, "", "an answer from the router at "+v.Address, seen, change)
	}
	var list []Finding
	if why := v.status.GetNotReady(); why != "" {
		list = append(list, fault(Fail, "", "a router that takes requests", why, "see the checks below; while it lasts, /readyz answers 503")...)
	}
	if skew := time.Until(v.status.GetTime().AsTime()); skew.Abs() > skewAllowed+took {
		list = append(list, fault(Warn, "", "clocks that agree to a second", "the router's is "+aheadText(skew), "keep the clocks with NTP")...)
	}
	if v.status.GetVersion() != v.Version {
		list = append(list, fault(Warn, "", "this program's version, "+v.Version, v.status.GetVersion(), "test a router with the kvpilot of its own version: newer checks may ask for what it does not report")...)
	}
	if len(list) > 0 {
		if list[0].Status == Warn {
			return list
		}
		list[0].Subject = v.Address // the other checks say why
		return list
	}
	return []Finding{ok("", "%s, up for %s, policy %s", v.status.GetVersion(), v.status.GetUptime().AsDuration().Round(time.Second), v.status.GetPolicy())}
}

func (v *view) states() (list []Finding) {
	for _, r := range v.replicas {
		id := r.GetReplicaId()
		state := strings.ToLower(strings.TrimPrefix(r.GetState().String(), "REPLICA_STATE_"))
		since := time.Since(r.GetSince().AsTime()).Round(time.Second)
		switch {
		case r.GetState() == kvpilotv1.ReplicaState_REPLICA_STATE_DRAINING:
			list = append(list, fault(Warn, id, "a replica that takes requests", fmt.Sprintf("draining for %s", since), "kvpilot replicas undrain "+id+" when it is well")...)
		case r.GetState() != kvpilotv1.ReplicaState_REPLICA_STATE_READY:
			list = append(list, fault(Fail, id, "a replica that takes requests", fmt.Sprintf("%s for %s: %s", state, since, cmp.Or(r.GetLastError(), "no answer yet")), "run kvpilot doctor with the router's settings on its machine: it finds the step that fails")...)
		case r.GetBreaker() == kvpilotv1.BreakerState_BREAKER_STATE_OPEN:
			list = append(list, fault(Fail, id, "requests that succeed", "it answers probes and fails requests: its breaker is open", "look at the replica's log; kvpilot replicas drain "+id+" takes it out")...)
		default:
			list = append(list, ok(id, "ready for %s", since))
		}
	}
	if len(v.replicas) == 0 {
		return fault(Fail, "", "at least one replica", "the router knows none", "set --replica URL, registry.replicas or another source of docs/replicas.md")
	}
	return list
}

// known are the router's replicas in the form of the local checks.
func (v *view) known() (list []*replica.Replica) {
	for _, r := range v.replicas {
		one := &replica.Replica{ID: replica.ID(r.GetReplicaId()), URL: r.GetUrl(), Version: r.GetVersion(), BlockSize: int(r.GetBlockSize())}
		for _, m := range r.GetModels() {
			one.Models = append(one.Models, replica.Model{ID: m.GetId(), Parent: m.GetParent(), MaxLen: int(m.GetMaxModelLen())})
		}
		list = append(list, one)
	}
	return list
}

func ownModels(r *replica.Replica) []replica.Model { return r.Models }

func (v *view) versions() (list []Finding) {
	all := v.known()
	for _, r := range all {
		if len(r.Models) > 0 {
			list = append(list, versionOf(string(r.ID), r.Version, nil)...)
		}
	}
	names, of := pools(all, ownModels)
	for _, name := range names {
		list = append(list, mixed(name, of[name], func(r *replica.Replica) string { return r.Version }, Warn, "one version in a pool", "run one vLLM version per pool; during an update this is expected")...)
	}
	return list
}

func (v *view) models() (list []Finding) {
	names, of := pools(v.known(), ownModels)
	for _, name := range names {
		before := len(list)
		list = append(list, mixed(name, of[name], func(r *replica.Replica) string {
			if m, _ := r.Serves(name); m.MaxLen > 0 {
				return fmt.Sprintf("max_model_len %d", m.MaxLen)
			}
			return ""
		}, Fail, "one context length in a pool", "start all replicas of a model with the same --max-model-len")...)
		list = append(list, mixed(name, of[name], func(r *replica.Replica) string { return adapters(r.Models) }, Warn, "the same LoRA adapters on each replica of a pool", "load missing adapters (POST /v1/load_lora_adapter)")...)
		if len(list) == before {
			list = append(list, ok(name, "%d replicas", len(of[name])))
		}
	}
	return list
}

func (v *view) caches() (list []Finding) {
	for _, r := range v.replicas {
		if len(r.GetModels()) == 0 {
			continue // the check replicas says why
		}
		if r.GetBlockSize() == 0 || r.GetBlocks() == 0 {
			list = append(list, fault(Warn, r.GetReplicaId(), "block size and number of blocks", fmt.Sprintf("block size %d, blocks %d", r.GetBlockSize(), r.GetBlocks()),
				"can the router read the replica's /metrics? The Rust front end does not report them: set block_size and blocks of the replica")...)
			continue
		}
		list = append(list, ok(r.GetReplicaId(), "block size %d, %d blocks", r.GetBlockSize(), r.GetBlocks()))
	}
	return list
}

func (v *view) parity() (list []Finding) {
	for _, p := range v.status.GetParity() {
		if p.GetState() == kvpilotv1.ParityState_PARITY_STATE_SUSPECT {
			list = append(list, fault(Fail, p.GetModel(), "the engine's own token ids", cmp.Or(p.GetDetail(), "suspect"), "run kvpilot doctor with the router's settings: its checks parity and blocks find the replica; docs/tokenization.md has the causes")...)
			continue
		}
		list = append(list, ok(p.GetModel(), "%s", p.GetState()))
	}
	return list
}

func (v *view) feeds() (list []Finding) {
	for _, r := range v.replicas {
		if r.GetState() != kvpilotv1.ReplicaState_REPLICA_STATE_READY {
			continue
		}
		for _, rank := range r.GetRanks() {
			subject := r.GetReplicaId()
			if len(r.GetRanks()) > 1 {
				subject = fmt.Sprintf("%s/%d", subject, rank.GetRank())
			}
			seen := fmt.Sprintf("%s: %d gaps, %d resets; %s", strings.ToLower(strings.TrimPrefix(rank.GetFeed().String(), "FEED_STATE_")), rank.GetGaps(), rank.GetResets(), rank.GetFeedError())
			switch rank.GetFeed() {
			case kvpilotv1.FeedState_FEED_STATE_EXACT:
				list = append(list, ok(subject, "exact, %d blocks known", rank.GetKnownBlocks()))
			case kvpilotv1.FeedState_FEED_STATE_NONE:
				list = append(list, fault(Warn, subject, "KV events", "the rank publishes none", "start vLLM with "+eventsOn)...)
			case kvpilotv1.FeedState_FEED_STATE_DEGRADED:
				if strings.Contains(rank.GetFeedError(), kvevents.ForeignReplay) {
					list = append(list, fault(Fail, subject, "a replay socket of the engine that publishes", rank.GetFeedError(), "set events.replay of this replica to the replay_endpoint in its --kv-events-config")...)
					continue
				}
				list = append(list, fault(Warn, subject, "the state exact", seen, "is the replay socket set and reachable, and large enough (buffer_steps)? docs/kv-events.md has each cause")...)
			case kvpilotv1.FeedState_FEED_STATE_COLD, kvpilotv1.FeedState_FEED_STATE_UNSPECIFIED:
				list = append(list, fault(Fail, subject, "the state exact", seen, "is the event socket "+rank.GetEventsEndpoint()+" open from the router's machine, and an engine's PUB socket? docs/kv-events.md has each cause")...)
			}
		}
	}
	return list
}

func (v *view) index() []Finding {
	i := v.status.GetIndex()
	if i.GetCut() {
		return fault(Warn, "", "room for all blocks", fmt.Sprintf("%d of at most %d blocks; others were left out", i.GetBlocks(), i.GetMaxBlocks()), "raise kvindex.max_bytes, and the memory if that lowered it")
	}
	return []Finding{ok("", "%d of at most %d blocks", i.GetBlocks(), i.GetMaxBlocks())}
}

func (v *view) peers() (list []Finding) {
	if len(v.routers) < 2 {
		return []Finding{ok("", "the router is alone")}
	}
	for _, r := range v.routers {
		name := cmp.Or(r.GetName(), r.GetRouterId())
		switch {
		case r.GetState() == kvpilotv1.RouterState_ROUTER_STATE_STRANGER:
			list = append(list, fault(Fail, name, "the same wire version", fmt.Sprintf("wire version %d.%d", r.GetWireMajor(), r.GetWireMinor()), "finish the update, or roll it back: until then there are two fleets")...)
		case r.GetState() == kvpilotv1.RouterState_ROUTER_STATE_DEAD:
			list = append(list, fault(Fail, name, "a router that answers", "it does not answer and has not said that it leaves", "look at the process and the network between "+v.Address+" and "+r.GetAddress())...)
		case !r.GetConnected():
			list = append(list, fault(Fail, name, "a link between the routers", "gossip reaches it and its address "+r.GetAddress()+" does not", "let firewalls pass fleet.rpc_listen over TCP, and set fleet.advertise to the router's own address")...)
		case r.GetReport() != nil && r.GetReport().GetVersion() != v.status.GetVersion():
			list = append(list, fault(Warn, name, "version "+v.status.GetVersion(), r.GetReport().GetVersion(), "finish the update")...)
		case r.GetReport() != nil && r.GetReport().GetNotReady() != "":
			list = append(list, fault(Fail, name, "a router that takes requests", r.GetReport().GetNotReady(), "run kvpilot doctor --server with this router's address")...)
		default:
			list = append(list, ok(name, "%s at %s", cmp.Or(r.GetReport().GetVersion(), "connected"), r.GetAddress()))
		}
	}
	return list
}
