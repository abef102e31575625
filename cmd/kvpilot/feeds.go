package main

import (
	"context"
	"fmt"
	"io"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// isPartial reports whether a rank publishes events and its cache is not known exactly.
func isPartial(s kvpilotv1.FeedState) bool {
	return s == kvpilotv1.FeedState_FEED_STATE_DEGRADED || s == kvpilotv1.FeedState_FEED_STATE_COLD
}

// printFeeds writes why the caches of ranks are not known exactly; wanted limits the ranks, nil: all.
func printFeeds(out io.Writer, list []*kvpilotv1.Replica, wanted map[string]bool) {
	for _, r := range list {
		if r.GetState() != kvpilotv1.ReplicaState_REPLICA_STATE_READY {
			continue
		}
		for _, rank := range r.GetRanks() {
			name := fmt.Sprintf("%s/%d", r.GetReplicaId(), rank.GetRank())
			if why := rank.GetFeedError(); why != "" && isPartial(rank.GetFeed()) && (wanted == nil || wanted[name]) {
				fmt.Fprintf(out, "\n%s: its events are %s: %s\n", plain(name), word(rank.GetFeed(), "FEED_STATE_"), plain(why))
			}
		}
	}
}

// explainFeeds writes, for the candidates of decisions whose caches were not known exactly, why that is so now. A router that does not
// list its replicas to the caller leaves it out.
func explainFeeds(ctx context.Context, c *client.Client, out io.Writer, decisions ...*kvpilotv1.Decision) {
	wanted := map[string]bool{}
	for _, d := range decisions {
		for _, candidate := range d.GetCandidates() {
			if isPartial(candidate.GetFeed()) {
				wanted[fmt.Sprintf("%s/%d", candidate.GetReplicaId(), candidate.GetRank())] = true
			}
		}
	}
	if len(wanted) == 0 {
		return
	}
	list, err := c.ListReplicas(ctx, "")
	if err != nil {
		return
	}
	printFeeds(out, list, wanted)
}
