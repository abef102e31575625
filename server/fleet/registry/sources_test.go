package registry_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// TestReplicasTellWhereTheyPublish: without any setting the replica is asked, ranks included, and asked
// again after a restart; what the operator configures counts more.
func TestReplicasTellWhereTheyPublish(t *testing.T) {
	two := `{"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5558","replay_endpoint":"tcp://*:5658","topic":"kv@a"},
		"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":"kv@a"}}`
	want := []replica.Events{
		{Endpoint: "tcp://a:5557", Replay: "tcp://a:5657", Topic: "kv@a"},
		{Endpoint: "tcp://a:5558", Replay: "tcp://a:5658", Topic: "kv@a", Rank: 1},
	}
	f := newFleet("a", "b", "c", "d", "e")
	f.set("e", func(h *host) { h.sources = two }) // too old to be asked
	for _, name := range []string{"a", "b", "c"} {
		f.set(name, func(h *host) { h.sources, h.version = two, "0.32.0" })
	}
	fixed, off := spec("b"), spec("c")
	fixed.Events.Endpoint, fixed.Ranks = "tcp://{host}:7000", 1
	off.Events.Endpoint = "none"
	virtual(t, f, listed(spec("a"), fixed, off, spec("d"), spec("e")), registry.Params{}, func(t *testing.T, r *registry.Registry, w *watcher) {
		pass(time.Second)
		view := func(id replica.ID) *replica.Replica { rep, _ := r.Snapshot().Replica(id); return rep }
		if a := view("a"); !slices.Equal(a.Events, want) || len(a.Slots) != 2 || a.State != replica.StateReady {
			t.Errorf("a = %+v", a)
		}
		if b := view("b"); len(b.Slots) != 1 || len(b.Events) != 1 || b.Events[0].Endpoint != "tcp://b:7000" {
			t.Errorf("b = %+v", b)
		}
		if c := view("c"); len(c.Slots) != 1 || len(c.Events) != 0 {
			t.Errorf("c = %+v", c)
		}
		for _, id := range []replica.ID{"d", "e"} { // older engines have no such route
			if d := view(id); len(d.Slots) != 1 || len(d.Events) != 0 {
				t.Errorf("%s = %+v", id, d)
			}
		}
		w.take()
		f.set("a", func(h *host) { h.status = 0 })
		pass(10 * time.Second)
		if a := view("a"); !slices.Equal(a.Events, want) {
			t.Errorf("while it is down, a = %+v", a)
		}
		f.set("a", func(h *host) { h.status, h.sources = 200, strings.ReplaceAll(two, "tcp://*:5", "tcp://10.0.0.9:4") })
		pass(time.Minute)
		if a := view("a"); len(a.Slots) != 2 || a.Events[0].Endpoint != "tcp://10.0.0.9:4557" || a.Events[1].Replay != "tcp://10.0.0.9:4658" {
			t.Errorf("after a restart on other ports, a = %+v", a)
		}
		if log := w.take(); len(log) != 4 {
			t.Errorf("its ranks are not new ones: %q", log)
		}
		f.set("a", func(h *host) { h.sources = "{}" })
		pass(2 * time.Minute)
		if a := view("a"); len(a.Slots) != 1 || len(a.Events) != 0 {
			t.Errorf("without events, a = %+v", a)
		}
	})
}

// TestTopicsWithNames: replicas that dial one socket of the router are told apart by their topics.
func TestTopicsWithNames(t *testing.T) {
	f := newFleet("a", "b")
	config := listed(spec("a"), spec("b"))
	config.Events = registry.EventsSpec{Endpoint: "tcp://*:5557", Bind: true, Topic: "kv@{host}@{id}/{rank}"}
	virtual(t, f, config, registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		for id, want := range map[replica.ID]string{"a": "kv@a@a/0", "b": "kv@b@b/0"} {
			if rep, _ := r.Snapshot().Replica(id); rep.Events[0].Topic != want || !rep.Events[0].Bind {
				t.Errorf("%s = %+v, want topic %q", id, rep.Events, want)
			}
		}
	})
}
