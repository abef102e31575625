package main

import (
	"strings"
	"testing"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// The drain of some ranks names them.
func TestTheDrainOfRanksNamesThem(t *testing.T) {
	var out strings.Builder
	now := &kvpilotv1.Replica{ReplicaId: "gpu-1", State: kvpilotv1.ReplicaState_REPLICA_STATE_READY, Drain: &kvpilotv1.ReplicaDrain{InFlight: 3, Move: true, Ranks: []uint32{0, 2}}}
	if err := showDrain(&out, now); err != nil || out.String() != "gpu-1 is ready, rank 0, 2 drains, 3 in flight\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if got := drainText(now.GetDrain()); !strings.HasPrefix(got, "rank 0, 2 drains since ") || !strings.HasSuffix(got, "3 in flight, which move") {
		t.Errorf("drainText() = %q", got)
	}
	if got := drainText(&kvpilotv1.ReplicaDrain{}); !strings.HasPrefix(got, "drains since ") {
		t.Errorf("drainText() = %q", got)
	}
}
