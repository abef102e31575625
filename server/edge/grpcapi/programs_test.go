package grpcapi_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/peers/members"
)

// withPrograms is a chooser that has programs, by model.
type withPrograms struct {
	idle
	of map[string][]programs.Program
}

func (w *withPrograms) Programs(filter func(string) (programs.Filter, bool), most int) (list []chooser.ModelPrograms) {
	for model, all := range w.of {
		f, ok := filter(model)
		if !ok {
			continue
		}
		m := chooser.ModelPrograms{Model: model, Replicas: 2, Needed: 3, Stats: programs.Stats{Placed: len(all), Waiting: 1}}
		slices.SortFunc(all, func(a, b programs.Program) int { return cmp.Compare(a.Name, b.Name) })
		for _, p := range all {
			if p.Name > f.After && (!f.Own || f.Tenant == p.Tenant) && (f.Of == "" || f.Of == p.Tenant) &&
				(len(f.States) == 0 || slices.Contains(f.States, p.State)) && f.Slots == nil && len(m.Programs) < most {
				m.Programs = append(m.Programs, p)
			}
		}
		list = append(list, m)
	}
	return list
}

// make puts n programs of two tenants in place, with names from first on.
func (w *withPrograms) make(model string, first, n int) {
	if w.of == nil {
		w.of = map[string][]programs.Program{}
	}
	for i := range n {
		w.of[model] = append(w.of[model], programs.Program{
			Name: programs.Name(first + i), Tenant: []string{"team", "rivals"}[i%2], State: programs.StateGap, Slot: replica.NoSlot, Idle: time.Second, Resident: 7,
		})
	}
}

// programIDs reads the list to its end, and returns the models and ids, and the sizes of the pages.
func programIDs(ctx context.Context, t *testing.T, at kvpilotv1.RoutingServiceClient, in *kvpilotv1.ListProgramsRequest) (ids []string, sizes []int) {
	t.Helper()
	for range 100 {
		out, err := at.ListPrograms(ctx, in)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range out.GetPrograms() {
			ids = append(ids, p.GetModel()+" "+p.GetProgramId())
		}
		sizes = append(sizes, len(out.GetPrograms()))
		if in.PageToken = out.GetNextPageToken(); in.GetPageToken() == "" {
			return ids, sizes
		}
	}
	t.Fatal("the list has no end")
	return nil, nil
}

func TestProgramsHavePages(t *testing.T) {
	has := &withPrograms{}
	has.make("a", 1, 700)
	has.make("b", 3, 600)
	r := newRig(t, grpcapi.DefaultConfig(), func(p *grpcapi.Params) { p.Chooser = has })
	client := kvpilotv1.NewRoutingServiceClient(r.socket)
	var want []string
	for i := range 700 {
		want = append(want, fmt.Sprintf("a %016x", 1+i))
	}
	for i := range 600 {
		want = append(want, fmt.Sprintf("b %016x", 3+i))
	}
	for size, sizes := range map[uint32]string{0: "[500 500 300]", 1000: "[500 500 300]", 400: "[400 400 400 100]", 325: "[325 325 325 325]"} {
		ids, got := programIDs(t.Context(), t, client, &kvpilotv1.ListProgramsRequest{PageSize: size})
		if fmt.Sprint(got) != sizes || !slices.Equal(ids, want) {
			t.Errorf("size %d: pages of %v, want %s; in order and complete %t", size, got, sizes, slices.Equal(ids, want))
		}
	}
	for _, token := range []string{"x", "e30", "!"} {
		if _, err := client.ListPrograms(t.Context(), &kvpilotv1.ListProgramsRequest{PageToken: token}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "page_token") {
			t.Errorf("the token %q: %v", token, err)
		}
	}
	first, err := client.ListPrograms(t.Context(), &kvpilotv1.ListProgramsRequest{PageSize: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.ListPrograms(t.Context(), &kvpilotv1.ListProgramsRequest{Tenant: "team", PageToken: first.GetNextPageToken()}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("the token of another list: %v", err)
	}
	if _, err := client.ListPrograms(t.Context(), &kvpilotv1.ListProgramsRequest{Model: "unknown"}); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown model: %v", err)
	}
	for _, s := range []kvpilotv1.ProgramState{kvpilotv1.ProgramState_PROGRAM_STATE_UNSPECIFIED, 99} {
		if _, err := client.ListPrograms(t.Context(), &kvpilotv1.ListProgramsRequest{States: []kvpilotv1.ProgramState{s}}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("the state %d: %v", s, err)
		}
	}
}

func TestAProgramInTheList(t *testing.T) {
	has := &withPrograms{of: map[string][]programs.Program{"m": {
		{Name: 1<<63 + 5, Parent: 2, Tenant: "team", State: programs.StateWaiting, Slot: replica.NoSlot, Needed: 900, Calls: 3, Prompt: 300, Held: 200, Wait: 4 * time.Second},
		{Name: 2, State: programs.StateRunning, Slot: 9, Resident: 80, Needed: 80},
		{Name: 3, State: programs.StatePaused, Slot: replica.NoSlot, Idle: time.Minute},
	}}}
	r := newRig(t, grpcapi.DefaultConfig(), func(p *grpcapi.Params) { p.Chooser = has })
	client := kvpilotv1.NewRoutingServiceClient(r.socket)
	out, err := client.ListPrograms(t.Context(), &kvpilotv1.ListProgramsRequest{})
	if err != nil || len(out.GetPrograms()) != 3 {
		t.Fatalf("%v, %v", out, err)
	}
	w := out.GetPrograms()[2]
	if w.GetProgramId() != "8000000000000005" || w.GetParentId() != "0000000000000002" || w.GetState() != kvpilotv1.ProgramState_PROGRAM_STATE_WAITING || w.GetTenant() != "team" ||
		w.GetReplicaId() != "" || w.GetNeededTokens() != 900 || w.GetCalls() != 3 || w.GetPromptTokens() != 300 || w.GetCachedTokens() != 200 ||
		w.GetWait().AsDuration() != 4*time.Second || w.GetIdle() != nil {
		t.Errorf("the program that waits is %v", w)
	}
	if run := out.GetPrograms()[0]; run.GetResidentTokens() != 80 || run.GetIdle() != nil || run.GetWait() != nil || run.GetParentId() != "" {
		t.Errorf("the program that runs is %v", run)
	}
	if paused := out.GetPrograms()[1]; paused.GetIdle().AsDuration() != time.Minute || paused.GetState() != kvpilotv1.ProgramState_PROGRAM_STATE_PAUSED {
		t.Errorf("the paused program is %v", paused)
	}
	if p := out.GetPressure(); len(p) != 1 || p[0].GetPlaced() != 3 || p[0].GetWaiting() != 1 || p[0].GetReplicas() != 2 || p[0].GetReplicasNeeded() != 3 {
		t.Errorf("the pressure is %v", p)
	}
	ids, _ := programIDs(t.Context(), t, client, &kvpilotv1.ListProgramsRequest{States: []kvpilotv1.ProgramState{kvpilotv1.ProgramState_PROGRAM_STATE_PAUSED, kvpilotv1.ProgramState_PROGRAM_STATE_RUNNING}})
	if len(ids) != 2 {
		t.Errorf("of two states: %v", ids)
	}
}

// A tenant sees its own programs and nothing of the fleet's; an operator sees all.
func TestProgramsOfOtherTenantsAreHidden(t *testing.T) {
	for _, asked := range []string{idA, idB} { // the router that decides, and one that passes the call on
		f := newFleetRig(t, keyed, func(id string, p *grpcapi.Params) {
			if id == idA {
				has := &withPrograms{}
				has.make("m", 1, 10)
				p.Chooser = has
			} else {
				has := &withPrograms{} // of its own clients
				has.make("m", 100, 2)
				p.Chooser = has
			}
		})
		at := f.routing(asked)
		for tenant, want := range map[string]int{"team": 5, "rivals": 5, "ops": 10} {
			out, err := at.ListPrograms(as(t, tenant), &kvpilotv1.ListProgramsRequest{})
			if err != nil || len(out.GetPrograms()) != want || (len(out.GetPressure()) == 1) != (tenant == "ops") {
				t.Errorf("%s at %s: %d programs, want %d; pressure %v; %v", tenant, asked, len(out.GetPrograms()), want, out.GetPressure(), err)
			}
			for _, p := range out.GetPrograms() {
				if tenant != "ops" && p.GetTenant() != tenant {
					t.Errorf("%s sees a program of %s", tenant, p.GetTenant())
				}
			}
		}
		if out, err := at.ListPrograms(as(t, "team"), &kvpilotv1.ListProgramsRequest{Tenant: "rivals"}); err != nil || len(out.GetPrograms()) != 0 {
			t.Errorf("a tenant that asks for another one's: %v, %v", out.GetPrograms(), err)
		}
	}
}

// Pages of a fleet miss no program, whichever router is asked. Where the decider does not answer, the router says so and shows its own.
func TestProgramsOfAFleet(t *testing.T) {
	f := newFleetRig(t, keyed, func(id string, p *grpcapi.Params) {
		has := &withPrograms{}
		has.make("m", map[string]int{idA: 1, idB: 2000, idC: 3000}[id], map[string]int{idA: 1100, idB: 3, idC: 0}[id])
		p.Chooser = has
	})
	for _, asked := range []string{idA, idB} {
		ids, sizes := programIDs(as(t, "ops"), t, f.routing(asked), &kvpilotv1.ListProgramsRequest{})
		if fmt.Sprint(sizes) != "[500 500 100]" || len(slices.Compact(ids)) != 1100 {
			t.Errorf("at %s: %d programs on pages of %v", asked, len(ids), sizes)
		}
	}
	f.up = func(id string) bool { return id != idA }
	out, err := f.routing(idB).ListPrograms(as(t, "ops"), &kvpilotv1.ListProgramsRequest{})
	if err != nil || len(out.GetPrograms()) != 3 || len(out.GetUnanswered()) != 1 || len(out.GetPressure()) != 1 {
		t.Errorf("without the decider: %v, %v", out, err)
	}
	f.up, f.state = func(string) bool { return true }, func(string) members.State { return members.Alive }
	_ = f.nodes[idA].inward.Close()
	out, err = f.routing(idB).ListPrograms(as(t, "ops"), &kvpilotv1.ListProgramsRequest{})
	if err != nil || len(out.GetPrograms()) != 3 || len(out.GetUnanswered()) != 1 {
		t.Errorf("with a decider that breaks: %v, %v", out, err)
	}
}
