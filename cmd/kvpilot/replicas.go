package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// newReplicasCommand lists replicas and takes them in and out of use.
func newReplicasCommand(env []string, out io.Writer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replicas",
		Short: "List, drain and undrain the replicas of a running router",
		Args:  cobra.NoArgs,
	}
	query(cmd, env, out, func(ctx context.Context, _ *remote, c *client.Client, _ []string) (*kvpilotv1.ListResponse, error) {
		list, err := c.ListReplicas(ctx, "")
		return &kvpilotv1.ListResponse{Replicas: list}, err
	}, func(a *kvpilotv1.ListResponse) error {
		if len(a.GetReplicas()) == 0 {
			_, err := fmt.Fprintln(out, "The router has no replicas. Add them with --replica or registry.replicas, or register them by RPC.")
			return err
		}
		if err := replicaGrid(a.GetReplicas()).print(out); err != nil {
			return err
		}
		printTroubles(out, a.GetReplicas())
		printFeeds(out, a.GetReplicas(), nil)
		return nil
	})
	cmd.AddCommand(newDrainCommand(env, out), newUndrainCommand(env, out))
	return cmd
}

func replicaGrid(list []*kvpilotv1.Replica) *grid {
	g := &grid{columns: []column{
		{head: "REPLICA"}, {head: "STATE"}, {head: "FOR", right: true}, {head: "EVENTS"}, {head: "VERSION", spare: 1}, {head: "BLOCKS", right: true, spare: 2}, {head: "MODELS", spare: 3}, {head: "URL"},
	}}
	for _, r := range list {
		var feeds, models []string
		for _, rank := range r.GetRanks() {
			feeds = append(feeds, word(rank.GetFeed(), "FEED_STATE_"))
		}
		if one := slices.Compact(slices.Clone(feeds)); len(one) == 1 && len(feeds) > 1 {
			feeds = []string{fmt.Sprintf("%d× %s", len(feeds), one[0])}
		}
		for _, m := range r.GetModels() {
			models = append(models, m.GetId())
		}
		g.add(r.GetReplicaId(), word(r.GetState(), "REPLICA_STATE_"), age(r.GetSince().AsTime()), strings.Join(feeds, ","), cmp.Or(r.GetVersion(), "–"),
			fmt.Sprintf("%d×%d", r.GetBlocks(), r.GetBlockSize()), cmp.Or(strings.Join(models, ","), "–"), r.GetUrl())
	}
	return g
}

// printTroubles says below the table why replicas are not ready.
func printTroubles(out io.Writer, list []*kvpilotv1.Replica) {
	for _, r := range list {
		if d := r.GetDrain(); d != nil {
			fmt.Fprintf(out, "\n%s: %s\n", plain(r.GetReplicaId()), plain(drainText(d)))
		}
		if why := r.GetLastError(); why != "" {
			fmt.Fprintf(out, "\n%s: %s\n", plain(r.GetReplicaId()), plain(why))
		}
	}
}

// age is how long ago t was, in one unit.
func age(t time.Time) string {
	d := time.Since(t)
	switch {
	case t.Unix() <= 0:
		return "–"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
