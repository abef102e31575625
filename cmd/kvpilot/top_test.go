package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// large is a look at 64 replicas, of which the last is broken.
func large() view {
	v := view{address: "router:9090", loads: &kvpilotv1.GetLoadsResponse{}, decisions: &kvpilotv1.ListDecisionsResponse{}}
	for i := range 64 {
		id := fmt.Sprintf("a-rather-long-replica-name-%02d", i)
		state := kvpilotv1.ReplicaState_REPLICA_STATE_READY
		if i == 63 {
			state = kvpilotv1.ReplicaState_REPLICA_STATE_UNHEALTHY
		}
		v.replicas = append(v.replicas, &kvpilotv1.Replica{ReplicaId: id, State: state, Ranks: []*kvpilotv1.ReplicaRank{{Feed: kvpilotv1.FeedState_FEED_STATE_EXACT}}})
		v.loads.Ranks = append(v.loads.Ranks, &kvpilotv1.RankLoad{ReplicaId: id, Requests: 2, QueuedTokens: 123456})
	}
	for i := range recentDecisions {
		v.decisions.Decisions = append(v.decisions.Decisions, &kvpilotv1.Decision{DecisionId: fmt.Sprintf("%024d", i), Model: "a-model-with-a-long-name", ReplicaId: v.replicas[i].GetReplicaId(), PromptTokens: 131072})
	}
	return v
}

func TestTopFitsEveryTerminal(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {200, 50}, {40, 10}, {80, 5}, {20, 3}, {1, 1}} {
		list := large().lines(size[0], size[1])
		if len(list) > size[1] {
			t.Errorf("%v: %d lines", size, len(list))
		}
		for _, line := range list {
			if cells(line) > size[0] {
				t.Errorf("%v: a line of %d cells: %q", size, cells(line), line)
			}
		}
	}
	small := strings.Join(large().lines(80, 24), "\n")
	for _, want := range []string{"63 of 64 ready, 128 in flight", "KV USED", "FIRST TOKEN", "running"} {
		if !strings.Contains(small, want) {
			t.Errorf("%q is not in:\n%s", want, small)
		}
	}
	if rows := strings.Split(small, "\n"); !strings.Contains(rows[3], "unhealthy") {
		t.Errorf("the broken replica is not the first:\n%s", small)
	}
	if whole := large().lines(0, 0); len(whole) != 2+1+64+1+1+recentDecisions {
		t.Errorf("a file gets %d lines", len(whole))
	}
	broken := large()
	broken.status = &kvpilotv1.GetStatusResponse{Minute: &kvpilotv1.HistoryStep{Failed: 3, Attempts: 90, Retries: 25, HandOvers: 12, Unserved: map[string]uint32{"RATE_LIMIT_EXCEEDED": 7, "NO_REPLICA": 40}}}
	if head := broken.head(); !strings.HasSuffix(head, ", 3 failed in the last minute, 25 retried, 12 handed over, 40 answered with NO_REPLICA, 7 answered with RATE_LIMIT_EXCEEDED") {
		t.Errorf("failures are not in %q", head)
	}
	empty := view{loads: &kvpilotv1.GetLoadsResponse{}, decisions: &kvpilotv1.ListDecisionsResponse{}}
	if text := strings.Join(empty.lines(80, 24), "\n"); !strings.Contains(text, "No requests yet") {
		t.Errorf("an empty router shows:\n%s", text)
	}
}

func TestTopShowsTheRouters(t *testing.T) {
	v := large()
	v.routers = []*kvpilotv1.Router{
		{RouterId: "0123abcd", Name: "router-0", Self: true, Connected: true, State: kvpilotv1.RouterState_ROUTER_STATE_ALIVE, Decides: []string{"m"}, Report: &kvpilotv1.RouterReport{Able: true, Requests: 7, Version: "v9"}},
		{RouterId: "1123abcd", Connected: true, State: kvpilotv1.RouterState_ROUTER_STATE_ALIVE},
		{RouterId: "2123abcd", Name: "router-2", State: kvpilotv1.RouterState_ROUTER_STATE_DEAD},
		{RouterId: "3123abcd", Name: "router-3", Connected: true, State: kvpilotv1.RouterState_ROUTER_STATE_ALIVE, Report: &kvpilotv1.RouterReport{Requests: 2}},
	}
	for _, size := range [][2]int{{200, 50}, {120, 24}, {80, 23}, {40, 10}, {1, 1}} {
		list := v.lines(size[0], size[1])
		if len(list) > size[1] {
			t.Errorf("%v: %d lines", size, len(list))
		}
		if shown, room := strings.Contains(strings.Join(list, "\n"), "ROUTER"), size[1] >= 24; shown != room {
			t.Errorf("%v: the routers are shown: %v", size, shown)
		}
	}
	whole := strings.Join(v.lines(0, 0), "\n")
	for _, want := range []string{"2 of 4 routers answer", "asked", "silent", "dead", "not able", "1123abcd", "v9"} {
		if !strings.Contains(whole, want) {
			t.Errorf("%q is not in:\n%s", want, whole)
		}
	}
	v.routers = v.routers[:1]
	if text := strings.Join(v.lines(0, 0), "\n"); strings.Contains(text, "outer") && strings.Contains(text, "ROUTER") {
		t.Errorf("a router alone shows:\n%s", text)
	}
}

func TestTopShowsThePrograms(t *testing.T) {
	v := large()
	v.programs = &kvpilotv1.ListProgramsResponse{
		Pressure: []*kvpilotv1.ProgramPressure{
			{Model: "m", Placed: 31, Paused: 2, Waiting: 11, Replicas: 8, ReplicasNeeded: 12}, {Model: "quiet", Placed: 3, Replicas: 2, ReplicasNeeded: 2},
		},
	}
	for i := range 44 {
		p := &kvpilotv1.Program{ProgramId: fmt.Sprintf("%016x", i), Model: "m", State: kvpilotv1.ProgramState_PROGRAM_STATE_GAP, ReplicaId: "r0", ResidentTokens: 1000, PromptTokens: 200, CachedTokens: 150, Idle: durationpb.New(time.Second)}
		if i >= 33 {
			p.State, p.ReplicaId, p.Wait, p.Idle = kvpilotv1.ProgramState_PROGRAM_STATE_WAITING, "", durationpb.New(time.Duration(i)*time.Second), nil
		}
		v.programs.Programs = append(v.programs.Programs, p)
	}
	for _, size := range [][2]int{{200, 60}, {120, 40}, {80, 23}, {40, 10}, {1, 1}} {
		list := v.lines(size[0], size[1])
		if len(list) > size[1] {
			t.Errorf("%v: %d lines", size, len(list))
		}
		text := strings.Join(list, "\n")
		if shown, room := strings.Contains(text, "PROGRAM"), size[1] >= 40; shown != room {
			t.Errorf("%v: the programs are shown: %v\n%s", size, shown, text)
		}
	}
	screen := strings.Join(v.lines(200, 60), "\n")
	for _, want := range []string{"Programs of m: 31 have memory, 44 want it (11 wait, 2 paused); 12 replicas would do, there are 8", "Programs of quiet: 3 have memory\n", "43.0 s", "… and 39 more; those that wait come first"} {
		if !strings.Contains(screen, want) {
			t.Errorf("%q is not in:\n%s", want, screen)
		}
	}
	if whole := strings.Join(v.lines(0, 0), "\n"); strings.Count(whole, " gap ") != 33 || !strings.Contains(whole, "75 %") {
		t.Errorf("a file gets:\n%s", whole)
	}
	var out bytes.Buffer
	if err := (&remote{out: &out}).jsonLine(v); err != nil || strings.Count(out.String(), `"program_id"`) != 44 || !strings.Contains(out.String(), `"replicas_needed":12`) {
		t.Errorf("as JSON: %v, %s", err, out.String())
	}
}

func TestExplainNamesTheWaitForMemory(t *testing.T) {
	for want, w := range map[string]*kvpilotv1.MemoryWait{
		"waited 41.0 s for memory (its 9100 tokens did not fit into the 800 that were free; 3 programs before it; expected about 40.0 s; program 00000000000000ff)": {
			ProgramId: "00000000000000ff", NeededTokens: 9100, FreeTokens: 800, ProgramsBefore: 3, Expected: durationpb.New(40 * time.Second), Waited: durationpb.New(41 * time.Second),
		},
		"waited 500 ms for memory (its 9100 tokens did not fit; 0 programs before it; program a)":                {ProgramId: "a", NeededTokens: 9100, Waited: durationpb.New(time.Second / 2)},
		"waited 500 ms for memory (its 91 tokens fitted and others went first; 2 programs before it; program a)": {ProgramId: "a", NeededTokens: 91, FreeTokens: 92, ProgramsBefore: 2, Waited: durationpb.New(time.Second / 2)},
	} {
		var out bytes.Buffer
		if err := printDecision(&out, &kvpilotv1.Decision{MemoryWait: w}); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%v: %q is not in\n%s", err, want, out.String())
		}
	}
}

func TestTopKeepsItsPictureWhenTheRouterIsGone(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out, live: true, width: 60, height: 10, last: []string{"head", "", "the table"}}
	if err := s.lost(errors.New("no router answers at 127.0.0.1:9090")); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.HasPrefix(got, home+"no router answers") || !strings.Contains(got, "retrying") || !strings.Contains(got, "the table") {
		t.Errorf("drawn: %q", got)
	}
}

func TestFactsWrapBetweenThem(t *testing.T) {
	if got, want := wrapped([]string{"one two", "three", "four"}, 14), "one two,\nthree, four"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := wrapped([]string{"one", "two"}, 0), "one, two"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
