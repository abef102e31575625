package doctor

import (
	"cmp"
	"context"
	"fmt"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// sockets compares the sockets that the settings name with the replicas' own reports of them.
type sockets struct{ scope }

// reportedOf returns where a rank publishes by its replica's own report; false when there is none.
func (in sockets) reportedOf(ctx context.Context, r *replica.Replica, rank int) (replica.Events, bool) {
	e := in.probe(ctx, r)
	if rank >= len(e.Sources) || len(e.Sources) != len(r.Slots) || e.Sources[rank].Endpoint == "" {
		return replica.Events{}, false
	}
	return e.Sources[rank], true
}

// ownerOf names the rank that reports an address as its own; empty when none does.
func (in sockets) ownerOf(ctx context.Context, address string) string {
	for _, r := range in.replicas {
		r = in.now(r)
		for rank := range r.Slots {
			if e, known := in.reportedOf(ctx, r, rank); known && (e.Endpoint == address || e.Replay == address) {
				return rankName(r, rank)
			}
		}
	}
	return ""
}

// elsewhere compares an address of a rank with its replica's report, where they differ. setting names the address.
func (in sockets) elsewhere(ctx context.Context, subject, setting, set, reported string) []Finding {
	expected := "the address that the replica reports, " + cmp.Or(reported, "which is none")
	change := fmt.Sprintf("set %s to %s, or leave events.endpoint empty: from vLLM 0.32 on the router reads the addresses itself", setting, cmp.Or(reported, "none"))
	if owner := in.ownerOf(ctx, set); owner != "" {
		return fault(Fail, subject, expected, fmt.Sprintf("%s, which %s reports as its own", set, owner), change)
	}
	return fault(Warn, subject, expected, set+" is set", change+". Where ports are mapped on the way, this is no fault")
}

// eventsElsewhere compares a rank's event socket and topic with its replica's report.
func (in sockets) eventsElsewhere(ctx context.Context, r *replica.Replica, rank int) []Finding {
	reported, known := in.reportedOf(ctx, r, rank)
	set := r.Events[rank]
	u := registry.Compare(set, reported)
	switch {
	case !known:
	case u.Endpoint:
		return in.elsewhere(ctx, rankName(r, rank), "events.endpoint", set.Endpoint, reported.Endpoint)
	case u.Topic:
		return fault(Fail, rankName(r, rank), fmt.Sprintf("the beginning of the topic that the replica reports, %q", reported.Topic), fmt.Sprintf("%q", set.Topic),
			"set events.topic to the topic of --kv-events-config, or to nothing, which takes all")
	}
	return nil
}

// replaysElsewhere compares a rank's replay socket with its replica's report.
func (in sockets) replaysElsewhere(ctx context.Context, r *replica.Replica, rank int) []Finding {
	reported, known := in.reportedOf(ctx, r, rank)
	set := r.Events[rank]
	if !known || !registry.Compare(set, reported).Replay {
		return nil
	}
	return in.elsewhere(ctx, rankName(r, rank), "events.replay", set.Replay, reported.Replay)
}

// foreign explains a replay socket that belongs to another engine; nil when it does not.
func (in sockets) foreign(ctx context.Context, r *replica.Replica, rank int, s kvevents.Status) []Finding {
	if s.Foreign == "" {
		return nil
	}
	seen, to := s.Foreign, "the replay_endpoint in its --kv-events-config"
	if owner := in.ownerOf(ctx, r.Events[rank].Replay); owner != "" {
		seen += "; " + owner + " reports the socket as its own"
	}
	if reported, known := in.reportedOf(ctx, r, rank); known && reported.Replay != "" {
		to = reported.Replay + ", which the replica reports"
	}
	return fault(Fail, rankName(r, rank), "a replay socket of the engine that publishes at "+s.Endpoint, seen, "set events.replay of this replica to "+to)
}
