package main

import (
	"cmp"
	"fmt"
	"slices"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

const (
	// programsShown is how many programs a terminal shows, roomBesidePrograms the height from which it does.
	programsShown      = 5
	roomBesidePrograms = 30
)

// programLines draws the programs: a line for each model, and the programs that need most attention. A height of zero asks for all.
func programLines(list *kvpilotv1.ListProgramsResponse, width, height int) []string {
	var lines []string
	for _, p := range list.GetPressure() {
		lines = append(lines, pressureLine(p))
	}
	if len(list.GetPrograms()) == 0 || height > 0 && height < roomBesidePrograms {
		return lines
	}
	g := programGrid(list.GetPrograms())
	left := 0
	if height > 0 && len(g.rows) > programsShown {
		left, g.rows = len(g.rows)-programsShown, g.rows[:programsShown]
	}
	lines = append(lines, g.lines(width)...)
	if more := list.GetNextPageToken() != ""; left > 0 || more {
		text := fmt.Sprintf("… and %d more", left)
		if more {
			text = fmt.Sprintf("… and more than %d more", left)
		}
		lines = append(lines, text+"; those that wait come first")
	}
	return lines
}

// pressureLine says how the programs of a model stand with the memory.
func pressureLine(p *kvpilotv1.ProgramPressure) string {
	wants := p.GetPlaced() + p.GetPaused() + p.GetWaiting()
	text := fmt.Sprintf("Programs of %s: %d have memory", plain(p.GetModel()), p.GetPlaced())
	if wants == p.GetPlaced() {
		return text
	}
	return fmt.Sprintf("%s, %d want it (%d wait, %d paused); %d replicas would do, there are %d",
		text, wants, p.GetWaiting(), p.GetPaused(), p.GetReplicasNeeded(), p.GetReplicas())
}

// programGrid is the table of programs: the longest waiting ones first, then the paused ones, then the largest.
func programGrid(list []*kvpilotv1.Program) *grid {
	g := &grid{columns: []column{
		{head: "PROGRAM", spare: 2}, {head: "MODEL", spare: 3}, {head: "TENANT", spare: 3}, {head: "STATE"}, {head: "REPLICA"}, {head: "RESIDENT", right: true}, {head: "NEEDS", right: true},
		{head: "CALLS", right: true, spare: 1}, {head: "CACHED", right: true, spare: 1}, {head: "WAIT", right: true}, {head: "IDLE", right: true, spare: 2},
	}}
	urgency := func(p *kvpilotv1.Program) int {
		switch p.GetState() {
		case kvpilotv1.ProgramState_PROGRAM_STATE_WAITING:
			return 0
		case kvpilotv1.ProgramState_PROGRAM_STATE_PAUSED:
			return 1
		default:
			return 2
		}
	}
	sorted := slices.Clone(list)
	slices.SortStableFunc(sorted, func(a, b *kvpilotv1.Program) int {
		return cmp.Or(cmp.Compare(urgency(a), urgency(b)), cmp.Compare(b.GetWait().AsDuration(), a.GetWait().AsDuration()), cmp.Compare(b.GetResidentTokens(), a.GetResidentTokens()))
	})
	for _, p := range sorted {
		home, cached, wait, idle := "–", "–", "–", "–"
		if p.GetReplicaId() != "" {
			home = fmt.Sprintf("%s/%d", p.GetReplicaId(), p.GetRank())
		}
		if n := p.GetPromptTokens(); n > 0 {
			cached = fmt.Sprintf("%.0f %%", 100*float64(p.GetCachedTokens())/float64(n))
		}
		if p.GetWait() != nil {
			wait = latency(p.GetWait().AsDuration())
		}
		if p.GetIdle() != nil {
			idle = latency(p.GetIdle().AsDuration())
		}
		g.add(p.GetProgramId(), p.GetModel(), cmp.Or(p.GetTenant(), "–"), word(p.GetState(), "PROGRAM_STATE_"), home, fmt.Sprint(p.GetResidentTokens()), fmt.Sprint(p.GetNeededTokens()),
			fmt.Sprint(p.GetCalls()), cached, wait, idle)
	}
	return g
}
