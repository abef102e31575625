package registry_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

func TestAddressesThatDiffer(t *testing.T) {
	reported := replica.Events{Endpoint: "tcp://gpu-1:5557", Replay: "tcp://gpu-1:5657", Topic: "kv@a"}
	for _, tt := range []struct {
		name     string
		set      replica.Events
		reported replica.Events
		want     registry.Unlike
	}{
		{"the same", reported, reported, registry.Unlike{}},
		{"another port of replays", replica.Events{Endpoint: "tcp://gpu-1:5557", Replay: "tcp://gpu-1:5658"}, reported, registry.Unlike{Replay: true}},
		{"another port of events", replica.Events{Endpoint: "tcp://gpu-1:5558", Replay: "tcp://gpu-1:5657"}, reported, registry.Unlike{Endpoint: true}},
		{"another host of replays", replica.Events{Endpoint: "tcp://gpu-1:5557", Replay: "tcp://gpu-2:5657"}, reported, registry.Unlike{Replay: true}},
		{"another topic", replica.Events{Endpoint: "tcp://gpu-1:5557", Topic: "kv@b"}, reported, registry.Unlike{Topic: true}},
		{"the beginning of the topic", replica.Events{Endpoint: "tcp://gpu-1:5557", Topic: "kv@"}, reported, registry.Unlike{}},
		{"another form of the name", replica.Events{Endpoint: "tcp://gpu-1.models.svc:5557"}, reported, registry.Unlike{}},
		{"an address for a name", replica.Events{Endpoint: "tcp://10.0.0.7:5557"}, reported, registry.Unlike{}},
		{"this machine's own name", replica.Events{Endpoint: "tcp://localhost:5557"}, reported, registry.Unlike{}},
		{"other addresses", replica.Events{Endpoint: "tcp://10.0.0.7:5557"}, replica.Events{Endpoint: "tcp://10.0.0.8:5557"}, registry.Unlike{Endpoint: true}},
		{"this machine's own address", replica.Events{Endpoint: "tcp://127.0.0.1:5557"}, replica.Events{Endpoint: "tcp://10.0.0.8:5557"}, registry.Unlike{}},
		{"IPv6 in two forms", replica.Events{Endpoint: "tcp://[fd00:0::1]:5557"}, replica.Events{Endpoint: "tcp://[fd00::1]:5557"}, registry.Unlike{}},
		{"another file", replica.Events{Endpoint: "ipc:///tmp/a"}, replica.Events{Endpoint: "ipc:///tmp/b"}, registry.Unlike{Endpoint: true}},
		{"another transport", replica.Events{Endpoint: "ipc:///tmp/a"}, reported, registry.Unlike{Endpoint: true}},
		{"no replays are reported", replica.Events{Endpoint: "tcp://gpu-1:5557", Replay: "tcp://gpu-1:5657"}, replica.Events{Endpoint: "tcp://gpu-1:5557"}, registry.Unlike{Replay: true}},
		{"no replays are set", replica.Events{Endpoint: "tcp://gpu-1:5557"}, reported, registry.Unlike{}},
		{"the engine dials", replica.Events{Endpoint: "tcp://0.0.0.0:7000", Bind: true, Replay: "tcp://gpu-1:5657"}, reported, registry.Unlike{}},
		{"by the Control service", replica.Events{Endpoint: "grpc://gpu-1:50051"}, reported, registry.Unlike{}},
		{"nothing is set", replica.Events{}, reported, registry.Unlike{}},
		{"nothing is reported", reported, replica.Events{}, registry.Unlike{}},
	} {
		if got := registry.Compare(tt.set, tt.reported); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// What a replica reports changes no setting. A difference is logged once, and again when the replica reports another one.
func TestADifferenceIsLoggedOnce(t *testing.T) {
	const one = `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":""}}`
	f := newFleet("a", "b")
	wrong, right := spec("a"), spec("b")
	wrong.Events = registry.EventsSpec{Endpoint: "tcp://{host}:5557", Replay: "tcp://b:5657"}
	right.Events = registry.EventsSpec{Endpoint: "tcp://{host}:5557", Replay: "tcp://{host}:5657"}
	for _, name := range []string{"a", "b"} {
		f.set(name, func(h *host) { h.sources, h.version = one, "0.33.0" })
	}
	var log bytes.Buffer
	virtual(t, f, listed(wrong, right), registry.Params{Scope: scope.Logged(slog.New(slog.NewTextHandler(&log, nil)))}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		const text = "reports other addresses of KV events"
		pass(10 * time.Minute)
		if n := strings.Count(log.String(), text); n != 1 || !strings.Contains(log.String(), "replica=a") || !strings.Contains(log.String(), "reported_replay=tcp://a:5657") {
			t.Errorf("%d lines: %s", n, log.String())
		}
		if a, _ := r.Snapshot().Replica("a"); a.Events[0].Replay != "tcp://b:5657" || len(a.Slots) != 1 {
			t.Errorf("the settings do not count: %+v", a)
		}
		f.set("b", func(h *host) { h.sources = strings.ReplaceAll(one, "5557", "5559") })
		pass(10 * time.Minute)
		if n := strings.Count(log.String(), text); n != 2 || !strings.Contains(log.String(), "replica=b") {
			t.Errorf("%d lines: %s", n, log.String())
		}
		f.set("b", func(h *host) { h.sources = `{"0":{"endpoint":"inproc://kv"}}` }) // of no interest where the settings have the addresses
		pass(2 * time.Minute)
		if strings.Contains(log.String(), "cannot be used") {
			t.Error(log.String())
		}
	})
}
