package registry

import (
	"log/slog"
	"net/netip"
	"net/url"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Unlike is how a rank's addresses of KV events in the settings differ from the addresses that its replica reports. Ports that are mapped
// between the two are such a difference and no fault.
type Unlike struct{ Endpoint, Replay, Topic bool }

// Compare compares the addresses of a rank as they are set with its replica's report. An address that is not set, or is found
// in another way, does not differ.
func Compare(set, reported replica.Events) (u Unlike) {
	if set.Endpoint == "" || strings.HasPrefix(set.Endpoint, "grpc") || reported.Endpoint == "" {
		return u
	}
	u.Endpoint = !set.Bind && !sameSocket(set.Endpoint, reported.Endpoint)
	u.Replay = set.Replay != "" && !sameSocket(set.Replay, reported.Replay)
	u.Topic = !strings.HasPrefix(reported.Topic, set.Topic)
	return u
}

// sameSocket reports whether two addresses may name one socket. A machine has several names and addresses, so that only hosts of
// one kind are compared.
func sameSocket(a, b string) bool {
	u, err := url.Parse(a)
	v, err2 := url.Parse(b)
	if a == b || err != nil || err2 != nil {
		return a == b
	}
	if u.Scheme != v.Scheme || u.Scheme != "tcp" || u.Port() != v.Port() {
		return false
	}
	return mayBeOneHost(u.Hostname(), v.Hostname())
}

func mayBeOneHost(a, b string) bool {
	x, err := netip.ParseAddr(a)
	y, err2 := netip.ParseAddr(b)
	switch {
	case err == nil && err2 == nil:
		return x == y || x.IsLoopback() || y.IsLoopback()
	case err == nil || err2 == nil:
		return true
	}
	a, b = strings.ToLower(strings.TrimSuffix(a, ".")), strings.ToLower(strings.TrimSuffix(b, "."))
	const local = "localhost"
	return a == b || a == local || b == local || strings.HasPrefix(a, b+".") || strings.HasPrefix(b, a+".")
}

// warnUnlike reports once where the settings differ from the replica.
func warnUnlike(log *slog.Logger, id replica.ID, set, reported []replica.Events) {
	for rank := range min(len(set), len(reported)) {
		if u := Compare(set[rank], reported[rank]); u != (Unlike{}) {
			log.Warn("the replica reports other addresses of KV events than the settings have; unless ports are mapped between, correct events.endpoint, events.replay or events.topic",
				"replica", id, "rank", rank, "endpoint", set[rank].Endpoint, "replay", set[rank].Replay, "topic", set[rank].Topic,
				"reported_endpoint", reported[rank].Endpoint, "reported_replay", reported[rank].Replay, "reported_topic", reported[rank].Topic)
		}
	}
}
