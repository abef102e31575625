package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// newReplicasCommand lists replicas and takes them in and out of use.
func newReplicasCommand(env []string, out io.Writer) *cobra.Command {
	r := &remote{out: out}
	cmd := &cobra.Command{
		Use:   "replicas",
		Short: "List the replicas of a running router, drain and undrain them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return r.once(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, err := c.ListReplicas(ctx, "")
				if err != nil {
					return err
				}
				if r.output == "json" {
					return r.json(&kvpilotv1.ListResponse{Replicas: list})
				}
				return table(out, func(w io.Writer) { printReplicas(w, list) })
			})
		},
	}
	r.flags(cmd, env)
	cmd.AddCommand(newDrainCommand(env, out, "drain", false), newDrainCommand(env, out, "undrain", true))
	return cmd
}

func newDrainCommand(env []string, out io.Writer, name string, undo bool) *cobra.Command {
	r := &remote{out: out}
	short := "Let a replica finish what it has and give it nothing new"
	if undo {
		short = "Give a drained replica requests again"
	}
	cmd := &cobra.Command{
		Use: name + " REPLICA", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.once(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				answer, err := c.Replicas().Drain(ctx, &kvpilotv1.DrainRequest{ReplicaId: args[0], Undo: undo})
				if err != nil {
					return err
				}
				if r.output == "json" {
					return r.json(answer)
				}
				fmt.Fprintf(out, "%s is %s\n", args[0], word(answer.GetReplica().GetState(), "REPLICA_STATE_"))
				return nil
			})
		},
	}
	r.flags(cmd, env)
	return cmd
}

func printReplicas(w io.Writer, list []*kvpilotv1.Replica) {
	fmt.Fprintln(w, "REPLICA\tSTATE\tEVENTS\tVERSION\tBLOCKS\tMODELS\tURL")
	for _, r := range list {
		var feeds, models []string
		for _, rank := range r.GetRanks() {
			feeds = append(feeds, word(rank.GetFeed(), "FEED_STATE_"))
		}
		for _, m := range r.GetModels() {
			models = append(models, m.GetId())
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d×%d\t%s\t%s\n", r.GetReplicaId(), word(r.GetState(), "REPLICA_STATE_"),
			strings.Join(feeds, ","), r.GetVersion(), r.GetBlocks(), r.GetBlockSize(), strings.Join(models, ","), r.GetUrl())
	}
}
