package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// newTopCommand shows a running router in the terminal.
func newTopCommand(env []string, out io.Writer) *cobra.Command {
	r := &remote{out: out}
	var every time.Duration
	var times int
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show replicas, load and decisions of a running router, live",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return r.ask(cmd.Context(), func(ctx context.Context, c *client.Client) error { return r.top(ctx, c, every, times) })
		},
	}
	r.flags(cmd, env)
	cmd.Flags().DurationVar(&every, "every", time.Second, "time between two looks")
	cmd.Flags().IntVar(&times, "times", 0, "end after so many looks; 0 goes on until interrupted")
	return cmd
}

// clear moves to the top left and erases what is below.
const clear = "\x1b[H\x1b[J"

func (r *remote) top(ctx context.Context, c *client.Client, every time.Duration, times int) error {
	ticker := time.NewTicker(max(every, 100*time.Millisecond))
	defer ticker.Stop()
	for n := 1; ; n++ {
		if err := r.look(ctx, c, times != 1); err != nil {
			if ctx.Err() != nil {
				return nil // interrupted, as it is meant to end
			}
			return err
		}
		if n == times {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// look draws one picture.
func (r *remote) look(ctx context.Context, c *client.Client, live bool) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	replicas, err := c.ListReplicas(ctx, "")
	if err != nil {
		return err
	}
	loads, err := c.Routing().GetLoads(ctx, &kvpilotv1.GetLoadsRequest{})
	if err != nil {
		return err
	}
	decisions, err := c.Routing().ListDecisions(ctx, &kvpilotv1.ListDecisionsRequest{Limit: 12})
	if err != nil {
		return err
	}
	if r.output == "json" {
		return r.json(loads)
	}
	var b bytes.Buffer
	width, height := terminal(r.out)
	if live && width > 0 {
		b.WriteString(clear)
	}
	fmt.Fprintf(&b, "kvpilot at %s  %s\n\n", r.address, time.Now().Format(time.TimeOnly))
	if err := table(&b, func(w io.Writer) { printLoads(w, replicas, loads.GetRanks()) }); err != nil {
		return err
	}
	b.WriteString("\n")
	if err := table(&b, func(w io.Writer) { printRecent(w, decisions.GetDecisions()) }); err != nil {
		return err
	}
	_, err = r.out.Write(fit(b.Bytes(), width, height))
	return err
}

// fit cuts a picture to a terminal's size; zeros cut nothing. A line that wraps, or one too many,
// would make a live picture jump.
func fit(text []byte, width, height int) []byte {
	if width <= 0 || height <= 0 {
		return text
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if len(lines) >= height {
		lines = lines[:max(height-1, 1)]
	}
	for i, line := range lines {
		shown := []rune(strings.TrimPrefix(line, clear))
		if len(shown) > width {
			lines[i] = line[:len(line)-len(strings.TrimPrefix(line, clear))] + string(shown[:width-1]) + "…"
		}
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}

func printLoads(w io.Writer, replicas []*kvpilotv1.Replica, loads []*kvpilotv1.RankLoad) {
	type key struct {
		id   string
		rank uint32
	}
	byRank := map[key]*kvpilotv1.RankLoad{}
	for _, l := range loads {
		byRank[key{l.GetReplicaId(), l.GetRank()}] = l
	}
	fmt.Fprintln(w, "REPLICA\tSTATE\tEVENTS\tIN FLIGHT\tPREFILL\tQUEUED TOKENS\tDECODE BLOCKS\tENGINE RUN/WAIT\tKV USED")
	for _, r := range replicas {
		for _, rank := range r.GetRanks() {
			l := byRank[key{r.GetReplicaId(), rank.GetRank()}]
			engine, kv := "–", "–"
			if l != nil && l.EngineRunning != nil {
				engine = fmt.Sprintf("%d/%d", l.GetEngineRunning(), l.GetEngineWaiting())
			}
			if l != nil && l.KvUsage != nil {
				kv = fmt.Sprintf("%.0f %%", 100*l.GetKvUsage())
			}
			fmt.Fprintf(w, "%s/%d\t%s\t%s\t%d\t%d\t%d\t%.0f\t%s\t%s\n", r.GetReplicaId(), rank.GetRank(),
				word(r.GetState(), "REPLICA_STATE_"), word(rank.GetFeed(), "FEED_STATE_"),
				l.GetRequests(), l.GetWaiting(), l.GetQueuedTokens(), l.GetDecodeBlocks(), engine, kv)
		}
	}
}

func printRecent(w io.Writer, list []*kvpilotv1.Decision) {
	fmt.Fprintln(w, "TIME\tMODEL\tREPLICA\tPROMPT\tOVERLAP\tPREDICTED\tFIRST TOKEN\tEND\tDECISION")
	for _, d := range list {
		overlap, predicted := uint32(0), 0.0
		for _, c := range d.GetCandidates() {
			if c.GetReplicaId() == d.GetReplicaId() && c.GetRank() == d.GetRank() {
				o := c.GetOverlap()
				overlap, predicted = o.GetGpuTokens()+o.GetCpuTokens()+o.GetDiskTokens(), c.GetTtftMs()
			}
		}
		first, end := "–", "running"
		if d.GetDryRun() {
			end = "dry run"
		}
		if o := d.GetOutcome(); o != nil {
			end = strings.ReplaceAll(word(o.GetEnd(), "END_"), "_", " ")
			if t := o.GetTtft().AsDuration(); t > 0 {
				first = t.Round(100 * time.Microsecond).String()
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n", d.GetTime().AsTime().Local().Format(time.TimeOnly), d.GetModel(), d.GetReplicaId(),
			d.GetPromptTokens(), overlap, milliseconds(predicted), first, end, d.GetDecisionId())
	}
}
