package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// newExplainCommand tells why a request went where it went.
func newExplainCommand(env []string, out io.Writer) *cobra.Command {
	r := &remote{out: out}
	cmd := &cobra.Command{
		Use:     "explain ID",
		Short:   "Tell why a request went to its replica",
		Long:    "Tell why a request went to its replica. ID is the X-Kvpilot-Decision or the X-Request-Id of the answer.",
		Example: "  kvpilot explain 8c3b6092650dd5056524d45e",
		Args:    exactly("the X-Kvpilot-Decision or X-Request-Id of an answer"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.once(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, err := c.ExplainDecision(ctx, args[0])
				if status.Code(err) == codes.NotFound || err == nil && len(list) == 0 {
					list, err = c.Explain(ctx, args[0])
				}
				if err != nil {
					return err
				}
				if r.output == "json" {
					return r.json(&kvpilotv1.ExplainDecisionResponse{Decisions: list})
				}
				for _, d := range list {
					if err := printDecision(out, d); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	r.flags(cmd, env)
	return cmd
}

// chooseFlags are what a dry run may ask.
type chooseFlags struct {
	model, prompt, body, policy, session string
}

// newChooseCommand asks where a prompt would go.
func newChooseCommand(env []string, out io.Writer) *cobra.Command {
	r := &remote{out: out}
	var f chooseFlags
	cmd := &cobra.Command{
		Use:     "choose",
		Short:   "Tell where a prompt would go, and why; nothing is sent or booked",
		Example: "  kvpilot choose --model sim --prompt 'Tell me about Ada Lovelace'\n  kvpilot choose --body request.json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := &kvpilotv1.ChooseReplicaRequest{Model: f.model, SessionId: f.session, DryRun: true, Explain: true}
			if f.policy != "" {
				q.Policy = &kvpilotv1.PolicyOverride{Name: f.policy}
			}
			switch {
			case f.body != "":
				text, err := os.ReadFile(f.body)
				if err != nil {
					return fmt.Errorf("read the request: %w", err)
				}
				q.Prompt = &kvpilotv1.ChooseReplicaRequest_Body{Body: &kvpilotv1.RequestBody{Json: text}}
			case f.prompt != "":
				q.Prompt = &kvpilotv1.ChooseReplicaRequest_Text{Text: f.prompt}
			default:
				return fmt.Errorf("one of --prompt and --body is needed")
			}
			return r.once(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				choice, err := c.Choose(ctx, q)
				if err != nil {
					return err
				}
				if r.output == "json" {
					return r.json(choice.ChooseReplicaResponse)
				}
				return printDecision(out, choice.GetDecision())
			})
		},
	}
	r.flags(cmd, env)
	cmd.Flags().StringVar(&f.model, "model", "", "model; may be left out when there is just one")
	cmd.Flags().StringVar(&f.prompt, "prompt", "", "a plain prompt")
	cmd.Flags().StringVar(&f.body, "body", "", "file with an OpenAI request")
	cmd.Flags().StringVar(&f.policy, "policy", "", "another policy than the model's")
	cmd.Flags().StringVar(&f.session, "session", "", "session id")
	return cmd
}

func milliseconds(ms float64) string {
	return time.Duration(ms * float64(time.Millisecond)).Round(10 * time.Microsecond).String()
}

// printDecision writes a decision with its candidates, the cheapest first.
func printDecision(out io.Writer, d *kvpilotv1.Decision) error {
	target := d.GetReplicaId()
	if target == "" {
		target = "no replica"
	}
	fmt.Fprintf(out, "%s → %s  (%s, decided by %s, attempt %d)\n", d.GetDecisionId(), target, d.GetPolicy(), d.GetReason(), d.GetAttempt()+1)
	facts := []string{fmt.Sprintf("%d prompt tokens", d.GetPromptTokens()), fmt.Sprintf("margin %.4g", d.GetMargin()), fmt.Sprintf("fleet load %.2f", d.GetLoad())}
	if held := d.GetHeld().AsDuration(); held > 0 {
		facts = append(facts, "held "+held.Round(time.Millisecond).String())
	}
	if d.GetOvertook() != "" {
		facts = append(facts, "overtook "+d.GetOvertook())
	}
	if d.GetResumes() {
		facts = append(facts, "goes on after it gave way")
	}
	if o := d.GetOutcome(); o != nil {
		facts = append(facts, word(o.GetEnd(), "END_"))
		if t := o.GetTtft().AsDuration(); t > 0 {
			facts = append(facts, fmt.Sprintf("first token after %s (predicted %s)", t.Round(10*time.Microsecond), o.GetPredictedTtft().AsDuration().Round(10*time.Microsecond)))
		}
		if o.CachedTokens != nil {
			facts = append(facts, fmt.Sprintf("%d tokens were cached (predicted %d)", o.GetCachedTokens(), o.GetPredictedCachedTokens()))
		}
	}
	if id := d.GetTraceId(); id != "" {
		facts = append(facts, "trace "+id)
	}
	fmt.Fprintf(out, "%s\n\n", strings.Join(facts, ", "))
	candidates := slices.Clone(d.GetCandidates())
	slices.SortStableFunc(candidates, func(a, b *kvpilotv1.Candidate) int {
		if (a.GetVeto() == "") != (b.GetVeto() == "") {
			return strings.Compare(a.GetVeto(), b.GetVeto())
		}
		return cmp.Compare(a.GetCost(), b.GetCost())
	})
	return table(out, func(w io.Writer) {
		fmt.Fprintln(w, "\tCANDIDATE\tOVERLAP\tUNCACHED\tPREFILL AHEAD\tOWN PREFILL\tFIRST TOKEN\tIN FLIGHT\tCOST\tEVENTS")
		for _, c := range candidates {
			mark, cost := "", fmt.Sprintf("%.4g", c.GetCost())
			if c.GetReplicaId() == d.GetReplicaId() && c.GetRank() == d.GetRank() {
				mark = "▸"
			}
			if c.GetVeto() != "" {
				cost = "veto: " + c.GetVeto()
			}
			o := c.GetOverlap()
			fmt.Fprintf(w, "%s\t%s/%d\t%d\t%d\t%s\t%s\t%s\t%d\t%s\t%s\n", mark, c.GetReplicaId(), c.GetRank(),
				o.GetGpuTokens()+o.GetCpuTokens()+o.GetDiskTokens(), c.GetUncachedTokens(),
				milliseconds(c.GetBacklogMs()), milliseconds(c.GetPrefillMs()), milliseconds(c.GetTtftMs()), c.GetRequests(), cost, word(c.GetFeed(), "FEED_STATE_"))
		}
	})
}
