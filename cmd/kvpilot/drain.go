package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// drainPoll is the time between two looks at a replica that drains.
const drainPoll = 250 * time.Millisecond

// newDrainCommand takes a replica out of use.
func newDrainCommand(env []string, out io.Writer) *cobra.Command {
	in := &kvpilotv1.DrainRequest{}
	var wait bool
	var ranks []uint
	cmd := &cobra.Command{
		Use:   "drain REPLICA",
		Short: "Let a replica finish its requests and send it no new ones",
		Long: "Let a replica finish its requests and send it no new ones, until it is undrained. All routers of a fleet follow.\n\n" +
			"With --move requests under way go to other replicas where no client notices: one whose answer has not begun starts\n" +
			"again, and a stream that can be resumed exactly is resumed. The others finish where they are.\n\n" +
			"With --rank only data-parallel ranks of it drain, and the others take new requests.\n\n" +
			"With --wait the command ends when no request is in flight there, or with an error when the drain was undone before.",
		Example: "  kvpilot drain gpu-1 --move --wait --reason 'new driver'",
		Args:    exactly("a replica's id, as `kvpilot replicas` lists it"),
	}
	r := &remote{out: out}
	r.flags(cmd, env)
	cmd.Flags().StringVar(&in.Reason, "reason", "", "why, for other operators")
	cmd.Flags().BoolVar(&in.Force, "force", false, "drain it even if a model is left without a ready replica")
	cmd.Flags().BoolVar(&in.Move, "move", false, "move requests under way to other replicas")
	ranksFlag(cmd, &ranks, "drain only these data-parallel ranks, counted from 0")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until none of its requests is in flight")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		in.ReplicaId, in.Ranks = args[0], numbers(ranks)
		return r.ask(cmd.Context(), func(ctx context.Context, c *client.Client) error {
			now, err := r.drain(ctx, c, in)
			if err == nil && wait {
				now, err = r.awaitDrained(ctx, c, now)
			}
			switch {
			case err != nil:
				return err
			case r.output == "json":
				return r.json(&kvpilotv1.DrainResponse{Replica: now})
			case wait:
				_, err = fmt.Fprintf(out, "%s%s is drained\n", plain(args[0]), ranksText(now.GetDrain()))
				return err
			}
			return showDrain(out, now)
		})
	}
	complete(cmd, "", replicaNames, r)
	return cmd
}

// newUndrainCommand takes a drained replica back into use.
func newUndrainCommand(env []string, out io.Writer) *cobra.Command {
	var ranks []uint
	cmd := &cobra.Command{Use: "undrain REPLICA", Short: "Send requests to a drained replica again", Args: exactly("a replica's id, as `kvpilot replicas` lists it")}
	ranksFlag(cmd, &ranks, "only these data-parallel ranks, counted from 0")
	r := query(cmd, env, out, func(ctx context.Context, r *remote, c *client.Client, args []string) (*kvpilotv1.UndrainResponse, error) {
		ctx, cancel := context.WithTimeout(ctx, r.timeout)
		defer cancel()
		now, err := c.Replicas().Undrain(ctx, &kvpilotv1.UndrainRequest{ReplicaId: args[0], Ranks: numbers(ranks)})
		return now, r.drainError(err)
	}, func(a *kvpilotv1.UndrainResponse) error { return showDrain(out, a.GetReplica()) })
	complete(cmd, "", replicaNames, r)
	return cmd
}

// ranksFlag adds the flag that names ranks.
func ranksFlag(cmd *cobra.Command, to *[]uint, usage string) {
	cmd.Flags().UintSliceVar(to, "rank", nil, usage)
}

func numbers(ranks []uint) []uint32 {
	var list []uint32
	for _, n := range ranks {
		list = append(list, uint32(min(n, math.MaxUint32)))
	}
	return list
}

// ranksText names the ranks of a drain; nothing where it is of the whole replica.
func ranksText(d *kvpilotv1.ReplicaDrain) string {
	if len(d.GetRanks()) == 0 {
		return ""
	}
	return " rank " + strings.Trim(strings.ReplaceAll(fmt.Sprint(d.GetRanks()), " ", ", "), "[]")
}

// drain asks the router once.
func (r *remote) drain(ctx context.Context, c *client.Client, in *kvpilotv1.DrainRequest) (*kvpilotv1.Replica, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	answer, err := c.Replicas().Drain(ctx, in)
	return answer.GetReplica(), r.drainError(err)
}

// drainError explains a refusal in the words of the command line.
func (r *remote) drainError(err error) error {
	switch status.Code(err) {
	case codes.NotFound:
		return fmt.Errorf("%s: %s; kvpilot replicas lists them", r.address, status.Convert(err).Message())
	case codes.AlreadyExists:
		return fmt.Errorf("%s: %s (--force)", r.address, status.Convert(err).Message())
	default: // the status says it
	}
	return err
}

// awaitDrained reports how many requests are left of a replica until there is none.
func (r *remote) awaitDrained(ctx context.Context, c *client.Client, now *kvpilotv1.Replica) (*kvpilotv1.Replica, error) {
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	shown := uint32(0)
	for {
		d := now.GetDrain()
		if d == nil {
			return now, errors.New("the replica was undrained while it was waited for")
		}
		left := d.GetInFlight()
		if left == 0 {
			return now, nil
		}
		if left != shown && r.output != "json" {
			fmt.Fprintf(r.out, "%s: %d in flight\n", plain(now.GetReplicaId()), left)
		}
		shown = left
		select {
		case <-ctx.Done():
			return now, ctx.Err()
		case <-tick.C:
		}
		look, cancel := context.WithTimeout(ctx, r.timeout)
		answer, err := c.Replicas().Get(look, &kvpilotv1.GetRequest{ReplicaId: now.GetReplicaId()})
		cancel()
		if err != nil {
			return now, err
		}
		now = answer.GetReplica()
	}
}

func showDrain(out io.Writer, now *kvpilotv1.Replica) error {
	text := ""
	if d := now.GetDrain(); d != nil {
		text = fmt.Sprintf(", %d in flight", d.GetInFlight())
		if ranks := ranksText(d); ranks != "" {
			text = "," + ranks + " drains" + text
		}
	}
	_, err := fmt.Fprintf(out, "%s is %s%s\n", plain(now.GetReplicaId()), word(now.GetState(), "REPLICA_STATE_"), text)
	return err
}

// drainText says since when a replica drains, by whom, why, and how many requests are left.
func drainText(d *kvpilotv1.ReplicaDrain) string {
	text := strings.TrimPrefix(ranksText(d)+" drains since ", " ") + d.GetSince().AsTime().Local().Format(time.DateTime)
	if d.GetBy() != "" {
		text += " by " + d.GetBy()
	}
	if d.GetReason() != "" {
		text += " (" + d.GetReason() + ")"
	}
	if d.GetMove() {
		return fmt.Sprintf("%s, %d in flight, which move", text, d.GetInFlight())
	}
	return fmt.Sprintf("%s, %d in flight", text, d.GetInFlight())
}
