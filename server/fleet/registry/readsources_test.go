package registry

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

func TestEventSourcesOfEveryForm(t *testing.T) {
	one := func(fields string) string { return `{"0":{` + fields + `}}` }
	for _, tt := range []struct {
		name, base, body, err string
		want                  []replica.Events
	}{
		{"none", "http://h:8000", `{}`, "", nil},
		{"off", "http://h:8000", one(`"enable_kv_cache_events":false,"endpoint":"tcp://*:1"`), "", nil},
		{"another publisher", "http://h:8000", one(`"publisher":"null","endpoint":"tcp://*:1"`), "", nil},
		{"no replay", "http://h:8000", one(`"endpoint":"tcp://*:5557","replay_endpoint":null`), "", []replica.Events{{Endpoint: "tcp://h:5557"}}},
		{"bound to port 0: the node's address", "http://h:8000", one(`"endpoint":"tcp://10.1.2.3:41234","replay_endpoint":"tcp://10.1.2.3:41235"`), "",
			[]replica.Events{{Endpoint: "tcp://10.1.2.3:41234", Replay: "tcp://10.1.2.3:41235"}}},
		{"IPv6", "http://[fd00::1]:8000", one(`"endpoint":"tcp://*:5557","replay_endpoint":"tcp://[fd00::2]:1"`), "",
			[]replica.Events{{Endpoint: "tcp://[fd00::1]:5557", Replay: "tcp://[fd00::2]:1"}}},
		{"only the rank of this address", "http://h:8000", `{"3":{"endpoint":"tcp://*:5560"}}`, "", []replica.Events{{Endpoint: "tcp://h:5560"}}},
		{"two ranks without events", "http://h:8000", `{"0":{"publisher":"null"},"1":{"publisher":"null"}}`, "", []replica.Events{{}, {Rank: 1}}},
		{"its own machine's socket", "http://127.0.0.1:8000", one(`"endpoint":"ipc:///tmp/kv"`), "", []replica.Events{{Endpoint: "ipc:///tmp/kv"}}},
		{"another machine's socket", "http://h:8000", one(`"endpoint":"ipc:///tmp/kv"`), "own machine", nil},
		{"another transport", "http://h:8000", one(`"endpoint":"inproc://kv"`), "only tcp and ipc", nil},
		{"no port", "http://h:8000", one(`"endpoint":"tcp://h"`), "missing port", nil},
		{"is not a rank", "http://h:8000", `{"x":{"endpoint":"tcp://*:1"}}`, "is not a rank", nil},
		{"no JSON", "http://h:8000", `<html>`, "invalid character", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readSources([]byte(tt.body), tt.base)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

func FuzzReadSources(f *testing.F) {
	f.Add([]byte(`{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":"t"}}`), "http://h:1")
	f.Add([]byte(`{"0":{"endpoint":"ipc://x"},"1":{"endpoint":"tcp://[::]:1"}}`), "http://[::1]:1")
	f.Fuzz(func(t *testing.T, body []byte, base string) {
		list, err := readSources(body, base)
		if err != nil {
			return
		}
		if len(list) > maxRanks {
			t.Fatalf("%d ranks", len(list))
		}
		for i, e := range list {
			if e.Rank != i || e.Bind {
				t.Errorf("rank %d: %+v", i, e)
			}
			for _, address := range []string{e.Endpoint, e.Replay} {
				if address != "" && !strings.HasPrefix(address, "tcp://") && !strings.HasPrefix(address, "ipc://") {
					t.Errorf("address %q", address)
				}
			}
		}
		if text := fmt.Sprint(list); strings.Contains(text, "://*:") {
			t.Errorf("a wildcard is left: %s", text)
		}
	})
}
