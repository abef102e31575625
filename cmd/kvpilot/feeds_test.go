package main

import (
	"bytes"
	"testing"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

func TestWhyCachesAreNotKnown(t *testing.T) {
	const exact, degraded, cold = kvpilotv1.FeedState_FEED_STATE_EXACT, kvpilotv1.FeedState_FEED_STATE_DEGRADED, kvpilotv1.FeedState_FEED_STATE_COLD
	rank := func(n uint32, s kvpilotv1.FeedState, why string) *kvpilotv1.ReplicaRank {
		return &kvpilotv1.ReplicaRank{Rank: n, Feed: s, FeedError: why}
	}
	ready := kvpilotv1.ReplicaState_REPLICA_STATE_READY
	list := []*kvpilotv1.Replica{
		{ReplicaId: "a", State: ready, Ranks: []*kvpilotv1.ReplicaRank{rank(0, exact, "an old error"), rank(1, degraded, "the replay socket belongs to another engine")}},
		{ReplicaId: "b", State: ready, Ranks: []*kvpilotv1.ReplicaRank{rank(0, cold, "connection refused"), rank(1, degraded, "")}},
		{ReplicaId: "c", State: kvpilotv1.ReplicaState_REPLICA_STATE_UNHEALTHY, Ranks: []*kvpilotv1.ReplicaRank{rank(0, cold, "connection refused")}},
	}
	for name, tt := range map[string]struct {
		wanted map[string]bool
		want   string
	}{
		"all":             {nil, "\na/1: its events are degraded: the replay socket belongs to another engine\n\nb/0: its events are cold: connection refused\n"},
		"of one decision": {map[string]bool{"a/1": true, "a/0": true}, "\na/1: its events are degraded: the replay socket belongs to another engine\n"},
		"of no interest":  {map[string]bool{"c/0": true}, ""},
	} {
		var out bytes.Buffer
		if printFeeds(&out, list, tt.wanted); out.String() != tt.want {
			t.Errorf("%s: %q", name, out.String())
		}
	}
}
