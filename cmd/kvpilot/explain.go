package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// newExplainCommand explains why a request was sent to its replica.
func newExplainCommand(env []string, out io.Writer) *cobra.Command {
	r := &remote{out: out}
	cmd := &cobra.Command{
		Use:     "explain ID",
		Short:   "Explain why a request was sent to its replica",
		Long:    "Explain why a request was sent to its replica. ID is the X-Kvpilot-Decision or the X-Request-Id of the answer.",
		Example: "  kvpilot explain 8c3b6092650dd5056524d45e",
		Args:    exactly("the X-Kvpilot-Decision or X-Request-Id of an answer"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.once(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, err := c.ExplainDecision(ctx, args[0])
				if status.Code(err) == codes.NotFound || err == nil && len(list) == 0 {
					list, err = c.Explain(ctx, args[0])
				}
				if status.Code(err) == codes.NotFound {
					return fmt.Errorf("%[2]s has no decision for %[1]s: another router made it, or it is no longer remembered (decisions.size); decisions.file keeps all of them", args[0], r.address)
				}
				if err != nil {
					return err
				}
				if r.output == "json" {
					return r.json(&kvpilotv1.ExplainDecisionResponse{Decisions: list})
				}
				for i, d := range list {
					if i > 0 {
						fmt.Fprintln(out)
					}
					if err := printDecision(out, d); err != nil {
						return err
					}
				}
				explainFeeds(ctx, c, out, list...)
				return nil
			})
		},
	}
	r.flags(cmd, env)
	complete(cmd, "", decisionIDs, r)
	return cmd
}

// chooseFlags are the options of a dry run.
type chooseFlags struct {
	model, prompt, body, policy, session string
}

// newChooseCommand asks where a prompt would go.
func newChooseCommand(env []string, out io.Writer) *cobra.Command {
	r := &remote{out: out}
	var f chooseFlags
	cmd := &cobra.Command{
		Use:     "choose",
		Short:   "Show which replica a prompt would be sent to, and why, without sending or booking anything",
		Example: "  kvpilot choose --prompt 'Tell me about Ada Lovelace'\n  kvpilot choose --model sim --body request.json\n  kvpilot choose --body - < request.json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q, err := f.question(cmd.InOrStdin())
			if err != nil {
				return err
			}
			return r.once(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				choice, err := c.Choose(ctx, q)
				if err != nil {
					return f.hint(ctx, c, err)
				}
				if r.output == "json" {
					return r.json(choice.ChooseReplicaResponse)
				}
				err = printDecision(out, choice.GetDecision())
				explainFeeds(ctx, c, out, choice.GetDecision())
				return err
			})
		},
	}
	r.flags(cmd, env)
	cmd.Flags().StringVar(&f.model, "model", "", "model; optional when there is only one")
	cmd.Flags().StringVar(&f.prompt, "prompt", "", "a plain prompt")
	cmd.Flags().StringVar(&f.body, "body", "", "file with an OpenAI request in JSON; - reads standard input")
	cmd.Flags().StringVar(&f.policy, "policy", "", "policy to use instead of the model's")
	cmd.Flags().StringVar(&f.session, "session", "", "session id")
	cmd.MarkFlagsMutuallyExclusive("prompt", "body")
	complete(cmd, "policy", policyNames, r)
	complete(cmd, "model", modelNames, r)
	return cmd
}

// question is the question of the flags.
func (f *chooseFlags) question(in io.Reader) (*kvpilotv1.ChooseReplicaRequest, error) {
	q := &kvpilotv1.ChooseReplicaRequest{Model: f.model, SessionId: f.session, Booking: kvpilotv1.Booking_BOOKING_DRY_RUN, Explain: true}
	if f.policy != "" {
		q.Policy = &kvpilotv1.PolicyOverride{Name: f.policy}
	}
	if f.body == "" {
		if f.prompt == "" {
			return nil, errors.New("a prompt is required: --prompt TEXT or --body FILE")
		}
		q.Prompt = &kvpilotv1.ChooseReplicaRequest_Text{Text: f.prompt}
		return q, nil
	}
	read := func() ([]byte, error) { return os.ReadFile(f.body) }
	if f.body == "-" {
		read = func() ([]byte, error) { return io.ReadAll(in) }
	}
	text, err := read()
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	if !json.Valid(text) {
		return nil, fmt.Errorf("--body %s must be an OpenAI request in JSON, such as {\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}", f.body)
	}
	q.Prompt = &kvpilotv1.ChooseReplicaRequest_Body{Body: &kvpilotv1.RequestBody{Json: text}}
	return q, nil
}

// hint adds to an error the names to choose from.
func (f *chooseFlags) hint(ctx context.Context, c *client.Client, err error) error {
	code := status.Code(err)
	if code == codes.InvalidArgument && f.policy != "" {
		if names, failed := policyNames(ctx, c); failed == nil && !slices.Contains(names, f.policy) {
			return fmt.Errorf("unknown policy %q; known are %s", f.policy, strings.Join(names, ", "))
		}
	}
	return err
}
