package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// completing bounds how long a shell waits for the router's names.
const completing = 2 * time.Second

// complete offers a shell the result of list for a flag, or for the argument when flag is empty. A
// router that does not answer offers nothing.
func complete(cmd *cobra.Command, flag string, list func(context.Context, *client.Client) ([]string, error), r *remote) {
	offer := func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if flag == "" && len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completing)
		defer cancel()
		var names []string
		err := r.ask(ctx, func(ctx context.Context, c *client.Client) (err error) {
			names, err = list(ctx, c)
			return err
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	if flag == "" {
		cmd.ValidArgsFunction = offer
		return
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, offer); err != nil {
		panic(err) // the flag is declared next to this call
	}
}

func replicaNames(ctx context.Context, c *client.Client) ([]string, error) {
	list, err := c.ListReplicas(ctx, "")
	var names []string
	for _, r := range list {
		names = append(names, cobra.CompletionWithDesc(r.GetReplicaId(), word(r.GetState(), "REPLICA_STATE_")))
	}
	return names, err
}

func modelNames(ctx context.Context, c *client.Client) ([]string, error) {
	list, err := c.ListReplicas(ctx, "")
	var names []string
	for _, r := range list {
		for _, m := range r.GetModels() {
			names = append(names, m.GetId())
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

func policyNames(ctx context.Context, c *client.Client) ([]string, error) {
	answer, err := c.Routing().ListPolicies(ctx, &kvpilotv1.ListPoliciesRequest{})
	var names []string
	for _, p := range answer.GetPolicies() {
		names = append(names, p.GetName())
	}
	return names, err
}

func decisionIDs(ctx context.Context, c *client.Client) ([]string, error) {
	answer, err := c.Routing().ListDecisions(ctx, &kvpilotv1.ListDecisionsRequest{PageSize: 20})
	var names []string
	for _, d := range answer.GetDecisions() {
		names = append(names, cobra.CompletionWithDesc(d.GetDecisionId(), d.GetTime().AsTime().Local().Format(time.TimeOnly)+" "+d.GetReplicaId()))
	}
	return names, err
}
