package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/kit/jsonform"
)

// newTopCommand shows a running router in the terminal.
func newTopCommand(env []string, out io.Writer) *cobra.Command {
	r := &remote{out: out}
	var every time.Duration
	var times int
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show routers, splits, programs, replicas, load and decisions of a running router, live",
		Long: "Show routers, splits, programs, replicas, load and decisions of a running router, live, until interrupted.\n\n" +
			"A terminal shows what fits: less important columns are hidden, and in a large fleet replicas in trouble\n" +
			"come first. A file gets everything. With -o json each update is one line.",
		Example: "  kvpilot top\n  kvpilot top --times 1 > now.txt",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return r.ask(cmd.Context(), func(ctx context.Context, c *client.Client) error { return r.top(ctx, c, every, times) })
		},
	}
	r.flags(cmd, env)
	cmd.Flags().DurationVar(&every, "every", time.Second, "time between updates")
	cmd.Flags().IntVar(&times, "times", 0, "number of updates; 0: until interrupted")
	return cmd
}

// The sequences for drawing a live picture: a screen of its own without a cursor, and the way back.
const (
	enter = "\x1b[?1049h\x1b[?25l"
	leave = "\x1b[?25h\x1b[?1049l"
	home  = "\x1b[H"
	// eol and below erase the rest of an earlier picture from a line, and under the last one.
	eol   = "\x1b[K"
	below = "\x1b[J"
)

// screen is where top draws.
type screen struct {
	out           io.Writer
	live          bool // a terminal, drawn over again and again
	width, height int  // zeros: no terminal
	last          []string
}

func (r *remote) top(ctx context.Context, c *client.Client, every time.Duration, times int) error {
	wide, high := terminal(r.out)
	s := &screen{out: r.out, live: wide > 0 && times != 1 && r.output == "table", width: wide, height: high}
	entered := false
	defer func() {
		if entered {
			fmt.Fprint(r.out, leave+strings.Join(s.last, "\n")+"\n")
		}
	}()
	ticker := time.NewTicker(max(every, 100*time.Millisecond))
	defer ticker.Stop()
	for n := 1; ; n++ {
		view, err := r.look(ctx, c)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (!s.live || s.last == nil):
			return err
		case err != nil:
			err = s.lost(r.readable(err))
		case r.output == "json":
			err = r.jsonLine(view)
		default:
			if s.live && !entered {
				entered = true
				fmt.Fprint(r.out, enter)
			}
			err = s.draw(view.lines)
		}
		if err != nil {
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

// draw shows a picture made for the size that the terminal has now.
func (s *screen) draw(lines func(width, height int) []string) error {
	if s.live {
		s.width, s.height = terminal(s.out)
	}
	height := s.height
	if !s.live {
		height = 0 // it may scroll
	}
	s.last = lines(s.width, height)
	return s.write()
}

// lost keeps the last picture and says above it why there is no news.
func (s *screen) lost(why error) error {
	s.last[0] = shorten(plain(why.Error())+"; retrying", max(s.width, 1))
	return s.write()
}

func (s *screen) write() error {
	text := strings.Join(s.last, "\n") + "\n"
	if s.live {
		text = home + strings.Join(s.last, eol+"\n") + eol + below
	}
	_, err := io.WriteString(s.out, text)
	return err
}

// view is one look at a router.
type view struct {
	address   string
	at        time.Time
	status    *kvpilotv1.GetStatusResponse
	routers   []*kvpilotv1.Router
	replicas  []*kvpilotv1.Replica
	loads     *kvpilotv1.GetLoadsResponse
	programs  *kvpilotv1.ListProgramsResponse
	splits    *kvpilotv1.ListSplitsResponse
	decisions *kvpilotv1.ListDecisionsResponse
}

func (r *remote) look(ctx context.Context, c *client.Client) (view, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	v := view{address: r.address, at: time.Now()}
	var err error
	if v.status, err = c.Router().GetStatus(ctx, &kvpilotv1.GetStatusRequest{}); err != nil {
		return v, err
	}
	routers, err := c.Router().ListRouters(ctx, &kvpilotv1.ListRoutersRequest{})
	if err != nil && status.Code(err) != codes.Unimplemented { // an older router
		return v, err
	}
	v.routers = routers.GetRouters()
	if v.replicas, err = c.ListReplicas(ctx, ""); err != nil {
		return v, err
	}
	if v.loads, err = client.Loads(ctx, c.Routing(), &kvpilotv1.GetLoadsRequest{}); err != nil {
		return v, err
	}
	v.programs, err = c.Routing().ListPrograms(ctx, &kvpilotv1.ListProgramsRequest{})
	if err != nil && status.Code(err) != codes.Unimplemented { // an older router
		return v, err
	}
	v.splits, err = c.Routing().ListSplits(ctx, &kvpilotv1.ListSplitsRequest{})
	if err != nil && status.Code(err) != codes.Unimplemented { // an older router
		return v, err
	}
	v.decisions, err = c.Routing().ListDecisions(ctx, &kvpilotv1.ListDecisionsRequest{PageSize: recentDecisions, OnlyChosen: true})
	return v, err
}

// recentDecisions is how many of them top asks for.
const recentDecisions = 12

// jsonLine writes a look as one line.
func (r *remote) jsonLine(v view) error {
	all := map[string]json.RawMessage{}
	programs := &kvpilotv1.ListProgramsResponse{Programs: v.programs.GetPrograms(), Pressure: v.programs.GetPressure()}
	splits := &kvpilotv1.ListSplitsResponse{Splits: v.splits.GetSplits()}
	for _, m := range []proto.Message{programs, splits, v.status, &kvpilotv1.ListRoutersResponse{Routers: v.routers}, &kvpilotv1.ListResponse{Replicas: v.replicas}, v.loads, v.decisions} {
		text, err := jsonform.Marshal(m)
		if err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
		var inner map[string]json.RawMessage
		if err := json.Unmarshal(text, &inner); err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
		maps.Copy(all, inner)
	}
	return json.NewEncoder(r.out).Encode(all)
}

// lines draws a look; zeros ask for all of it.
func (v view) lines(width, height int) []string {
	list := []string{v.head(), ""}
	// A small terminal has no room for the routers; the head has their number.
	if routers := routerGrid(v.routers); len(routers.rows) > 1 && (height == 0 || height >= len(routers.rows)+roomBesideRouters) {
		list = append(append(list, routers.lines(width)...), "")
	}
	if splits := splitLines(v.splits.GetSplits(), width); len(splits) > 0 && (height == 0 || height >= len(list)+len(splits)+roomBesideRouters) {
		list = append(append(list, splits...), "")
	}
	if programs := programLines(v.programs, width, height); len(programs) > 0 && (height == 0 || height >= len(list)+len(programs)+roomBesideRouters) {
		list = append(append(list, programs...), "")
	}
	loads := v.grid()
	recent := recentGrid(v.decisions.GetDecisions())
	rows := len(loads.rows)
	if height > 0 {
		// The part above, a blank between, two heads, one line for omitted ranks.
		room := max(height-len(list)-4, 2)
		rows = min(rows, max(room-min(len(recent.rows), recentDecisions, room/2), 1))
		recent.rows = recent.rows[:min(len(recent.rows), max(room-rows, 0))]
	}
	left := len(loads.rows) - rows
	loads.rows = loads.rows[:rows]
	list = append(list, loads.lines(width)...)
	if left > 0 {
		list = append(list, fmt.Sprintf("… and %d more; those in trouble come first", left))
	}
	list = append(list, "")
	if len(v.decisions.GetDecisions()) == 0 {
		return append(list, "No requests yet.")
	}
	list = append(list, recent.lines(width)...)
	if height > 0 {
		list = list[:min(len(list), height)]
		for i, line := range list {
			list[i] = shorten(line, width)
		}
	}
	return list
}

// roomBesideRouters is the height of the rest of the picture when the routers are shown.
const roomBesideRouters = 20

// routerGrid is the table of the fleet's routers.
func routerGrid(list []*kvpilotv1.Router) *grid {
	g := &grid{columns: []column{
		{head: "ROUTER"}, {head: "ID", spare: 2}, {head: "STATE"}, {head: "IN FLIGHT", right: true}, {head: "HELD", right: true, spare: 1}, {head: "UP", right: true, spare: 1},
		{head: "DECIDES", spare: 1}, {head: "VERSION", spare: 3},
	}}
	for _, r := range list {
		report := r.GetReport()
		flight, held, up := "–", "–", "–"
		if report != nil {
			flight, held = fmt.Sprint(report.GetRequests()), fmt.Sprint(report.GetHeld())
		}
		if at := r.GetStarted(); at != nil && report != nil {
			up = max(0, time.Since(at.AsTime())).Round(time.Second).String()
		}
		g.add(cmp.Or(r.GetName(), r.GetRouterId()), r.GetRouterId(), routerState(r), flight, held, up, cmp.Or(strings.Join(r.GetDecides(), ", "), "–"), cmp.Or(report.GetVersion(), "–"))
	}
	return g
}

// routerState says how a router stands, in a word or two.
func routerState(r *kvpilotv1.Router) string {
	report := r.GetReport()
	switch {
	case r.GetState() != kvpilotv1.RouterState_ROUTER_STATE_ALIVE:
		return word(r.GetState(), "ROUTER_STATE_")
	case !r.GetConnected():
		return "no link"
	case report == nil:
		return "silent"
	case report.GetNotReady() != "":
		return "not ready"
	case !report.GetAble():
		return "not able"
	case r.GetSelf():
		return "asked"
	}
	return "alive"
}

func (v view) head() string {
	ready, flight, prefill := 0, uint32(0), uint32(0)
	for _, r := range v.replicas {
		if r.GetState() == kvpilotv1.ReplicaState_REPLICA_STATE_READY {
			ready++
		}
	}
	for _, l := range v.loads.GetRanks() {
		flight += l.GetRequests()
		prefill += l.GetWaiting()
	}
	text := fmt.Sprintf("kvpilot at %s  %s  %d of %d ready, %d in flight, %d in prefill", v.address, v.at.Format(time.TimeOnly), ready, len(v.replicas), flight, prefill)
	if n := len(v.routers); n > 1 {
		answers := 0
		for _, r := range v.routers {
			if r.GetReport() != nil {
				answers++
			}
		}
		text += fmt.Sprintf(", %d of %d routers answer", answers, n)
	}
	if failed := v.status.GetMinute().GetFailed(); failed > 0 {
		text += fmt.Sprintf(", %d failed in the last minute", failed)
	}
	if n := v.status.GetMinute().GetRetries(); n > 0 {
		text += fmt.Sprintf(", %d retried", n)
	}
	if n := v.status.GetMinute().GetHandOvers(); n > 0 {
		text += fmt.Sprintf(", %d handed over", n)
	}
	unserved := v.status.GetMinute().GetUnserved()
	for _, reason := range slices.Sorted(maps.Keys(unserved)) {
		text += fmt.Sprintf(", %d answered with %s", unserved[reason], reason)
	}
	return text
}

// grid is the table of ranks, ranks of replicas in trouble first when not all is well.
func (v view) grid() *grid {
	type key struct {
		id   string
		rank uint32
	}
	byRank := map[key]*kvpilotv1.RankLoad{}
	for _, l := range v.loads.GetRanks() {
		byRank[key{l.GetReplicaId(), l.GetRank()}] = l
	}
	g := &grid{columns: []column{
		{head: "REPLICA"}, {head: "STATE"}, {head: "EVENTS"}, {head: "IN FLIGHT", right: true}, {head: "PREFILL", right: true}, {head: "QUEUED TOKENS", right: true},
		{head: "DECODE BLOCKS", right: true, spare: 2}, {head: "ENGINE RUN/WAIT", right: true, spare: 1}, {head: "KV USED", right: true},
	}}
	var well [][]string
	for _, r := range v.replicas {
		for _, rank := range r.GetRanks() {
			l := byRank[key{r.GetReplicaId(), rank.GetRank()}]
			engine, kv := "–", "–"
			if l != nil && l.EngineRunning != nil {
				engine = fmt.Sprintf("%d/%d", l.GetEngineRunning(), l.GetEngineWaiting())
			}
			if l != nil && l.KvUsage != nil {
				kv = fmt.Sprintf("%.0f %%", 100*l.GetKvUsage())
			}
			feed := word(rank.GetFeed(), "FEED_STATE_")
			row := []string{
				fmt.Sprintf("%s/%d", r.GetReplicaId(), rank.GetRank()), word(r.GetState(), "REPLICA_STATE_"), feed, fmt.Sprint(l.GetRequests()), fmt.Sprint(l.GetWaiting()),
				fmt.Sprint(l.GetQueuedTokens()), fmt.Sprintf("%.0f", l.GetDecodeBlocks()), engine, kv,
			}
			if r.GetState() == kvpilotv1.ReplicaState_REPLICA_STATE_READY && feed != "degraded" && feed != "cold" {
				well = append(well, row)
			} else {
				g.rows = append(g.rows, row)
			}
		}
	}
	g.rows = append(g.rows, well...)
	return g
}

func recentGrid(list []*kvpilotv1.Decision) *grid {
	g := &grid{columns: []column{
		{head: "TIME"}, {head: "MODEL", spare: 3}, {head: "REPLICA"}, {head: "PROMPT", right: true}, {head: "OVERLAP", right: true}, {head: "PREDICTED", right: true, spare: 1},
		{head: "FIRST TOKEN", right: true}, {head: "END"}, {head: "DECISION", spare: 2},
	}}
	for _, d := range list {
		overlap, predicted := uint32(0), time.Duration(0)
		for _, c := range d.GetCandidates() {
			if c.GetReplicaId() == d.GetReplicaId() && c.GetRank() == d.GetRank() {
				o := c.GetOverlap()
				overlap, predicted = o.GetGpuTokens()+o.GetCpuTokens()+o.GetDiskTokens(), c.GetTtft().AsDuration()
			}
		}
		first, end := "–", "running"
		if d.GetDryRun() {
			end = "dry run"
		}
		if o := d.GetOutcome(); o != nil {
			end = strings.ReplaceAll(word(o.GetEnd(), "END_"), "_", " ")
			if t := o.GetTtft().AsDuration(); t > 0 {
				first = latency(t)
			}
		}
		g.add(d.GetTime().AsTime().Local().Format(time.TimeOnly), d.GetModel(), cmp.Or(d.GetReplicaId(), "–"), fmt.Sprint(d.GetPromptTokens()), fmt.Sprint(overlap), latency(predicted), first, end, d.GetDecisionId())
	}
	return g
}
