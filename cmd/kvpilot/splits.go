package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// newSplitsCommand compares the sides of split models, and sends them back and forward.
func newSplitsCommand(env []string, out io.Writer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "splits",
		Short: "Compare the sides of models whose requests are split, such as a stable version and a canary",
		Long: "Compare the sides of models whose requests are split, by the requests of the last hour that the asked router had.\n\n" +
			"A side that steps back gets no further requests until it is sent forward again.",
		Example: "  kvpilot splits\n  kvpilot splits back qwen canary\n  kvpilot splits forward qwen canary",
		Args:    cobra.NoArgs,
	}
	query(cmd, env, out, func(ctx context.Context, _ *remote, c *client.Client, _ []string) (*kvpilotv1.ListSplitsResponse, error) {
		return c.Routing().ListSplits(ctx, &kvpilotv1.ListSplitsRequest{})
	}, func(a *kvpilotv1.ListSplitsResponse) error { return printSplits(out, a.GetSplits()) })
	cmd.AddCommand(newSplitSideCommand(env, out, true), newSplitSideCommand(env, out, false))
	return cmd
}

// newSplitSideCommand sends a side back or forward.
func newSplitSideCommand(env []string, out io.Writer, back bool) *cobra.Command {
	cmd := &cobra.Command{
		Use: "forward MODEL SIDE", Short: "Send requests to a side that stepped back again",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("%s takes two arguments: a model and a side, as `kvpilot splits` lists them", cmd.CommandPath())
			}
			return nil
		},
	}
	if back {
		cmd.Use, cmd.Short = "back MODEL SIDE", "Send no further requests to a side, on all routers of the fleet"
	}
	query(cmd, env, out, func(ctx context.Context, _ *remote, c *client.Client, args []string) (*kvpilotv1.SetSplitSideResponse, error) {
		return c.Routing().SetSplitSide(ctx, &kvpilotv1.SetSplitSideRequest{Model: args[0], Side: args[1], Back: back})
	}, func(a *kvpilotv1.SetSplitSideResponse) error {
		if list := a.GetUnanswered(); len(list) > 0 {
			fmt.Fprintf(out, "Routers that did not answer, whose state is as before: %s\n", strings.Join(list, ", "))
		}
		return printSplits(out, []*kvpilotv1.Split{a.GetSplit()})
	})
	return cmd
}

func printSplits(out io.Writer, list []*kvpilotv1.Split) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(out, "No request for a model that is split came in the last hour.")
		return err
	}
	wide, _ := terminal(out)
	_, err := fmt.Fprintln(out, strings.Join(splitLines(list, wide), "\n"))
	return err
}

// splitLines draws the table of sides, and below it what is to be said of some.
func splitLines(list []*kvpilotv1.Split, width int) []string {
	if len(list) == 0 {
		return nil
	}
	g := &grid{columns: []column{
		{head: "SPLIT"}, {head: "SIDE"}, {head: "SHARE", right: true}, {head: "STATE"}, {head: "REQUESTS", right: true}, {head: "FAILED", right: true}, {head: "FIRST TOKEN", right: true},
		{head: "P99", right: true, spare: 2}, {head: "ANSWER", right: true}, {head: "P99", right: true, spare: 2}, {head: "REGRET", right: true, spare: 3},
	}}
	var notes []string
	for _, s := range list {
		sum := uint32(0)
		for _, one := range s.GetSides() {
			sum += one.GetWeight()
		}
		for _, one := range s.GetSides() {
			failed, regret := "–", "–"
			if n := one.GetRequests(); n > 0 {
				failed = fmt.Sprintf("%.1f %%", 100*float64(one.GetFailed())/float64(n))
			}
			if one.GetShadowRegret() != nil {
				regret = fmt.Sprintf("%.1f ms", one.GetShadowRegret().AsDuration().Seconds()*1000)
			}
			g.add(s.GetModel(), one.GetSide(), fmt.Sprintf("%.1f %%", 100*float64(one.GetWeight())/float64(max(1, sum))), sideState(one), fmt.Sprint(one.GetRequests()), failed,
				seen(one.GetTtftP50().AsDuration()), seen(one.GetTtftP99().AsDuration()), seen(one.GetAnswerP50().AsDuration()), seen(one.GetAnswerP99().AsDuration()), regret)
			notes = append(notes, sideNotes(s.GetModel(), one)...)
		}
	}
	return append(g.lines(width), notes...)
}

// seen is a time, or a dash where none was measured.
func seen(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return latency(d)
}

func sideState(s *kvpilotv1.SplitSide) string {
	switch {
	case s.GetSteppedBackSince() != nil:
		return "stepped back"
	case !s.GetReady():
		return "not ready"
	case s.GetWorse() != "":
		return "worse"
	case s.GetBaseline():
		return "baseline"
	}
	return "compared"
}

func sideNotes(model string, s *kvpilotv1.SplitSide) (notes []string) {
	name := plain(s.GetSide()) + " of " + plain(model)
	if labels := s.GetLabels(); len(labels) > 0 {
		var terms []string
		for _, key := range slices.Sorted(maps.Keys(labels)) {
			terms = append(terms, plain(key+"="+labels[key]))
		}
		notes = append(notes, name+": replicas with "+strings.Join(terms, ", "))
	}
	if at := s.GetSteppedBackSince(); at != nil {
		notes = append(notes, fmt.Sprintf("%s stepped back at %s (%s): %s", name, at.AsTime().Local().Format(time.TimeOnly), plain(s.GetSteppedBackBy()), plain(s.GetSteppedBackWhy())))
	} else if s.GetWorse() != "" {
		notes = append(notes, name+" is worse: "+plain(s.GetWorse()))
	}
	return notes
}
