package grpcapi

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/types/known/durationpb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	ledger "github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/peers/forward"
)

// programming has the programs of the pools; *chooser.Chooser does.
type programming interface {
	Programs(filter func(model string) (ledger.Filter, bool), most int) []chooser.ModelPrograms
}

// programs shows the programs that have a place in memory or want one.
type programs struct {
	chooser programming
	pools   pools
	senders *senders
	others  *others
	trail   trail
}

// mostPrograms bounds the programs of one answer.
const mostPrograms = 500

// programPlace is a program's place in a list.
type programPlace struct {
	Model string `json:"model"`
	ID    string `json:"id"`
}

func placeOfProgram(p *kvpilotv1.Program) programPlace {
	return programPlace{Model: p.GetModel(), ID: p.GetProgramId()}
}

func (p programPlace) compare(other programPlace) int {
	return cmp.Or(cmp.Compare(p.Model, other.Model), cmp.Compare(p.ID, other.ID))
}

func (s *programs) ListPrograms(ctx context.Context, in *kvpilotv1.ListProgramsRequest) (*kvpilotv1.ListProgramsResponse, error) {
	page, err := programPageOf(in)
	if err != nil {
		return nil, err
	}
	if in.GetModel() != "" {
		if _, err := s.pools.pool(in.GetModel()); err != nil {
			return nil, err
		}
	}
	if err := hold(ctx, answerMemory); err != nil {
		return nil, err
	}
	s.trail.recordRead(ctx, kvpilotv1.RoutingService_ListPrograms_FullMethodName, "")
	out := &kvpilotv1.ListProgramsResponse{}
	models := []string{in.GetModel()}
	if in.GetModel() == "" {
		models = s.pools.models()
	}
	s.own(ctx, in, &page, out, func(model string) bool {
		models = append(models, model) // the model of a pool without replicas is named by its programs alone
		return s.others.decides(model)
	})
	if missing := s.others.programsWide(ctx, in, models, &page, out); len(missing) > 0 {
		s.own(ctx, in, &page, out, func(model string) bool { return slices.Contains(missing, s.others.peers.Decider(model)) })
	}
	page.cut(in, out)
	return out, nil
}

// own adds to out this router's programs of the models selected by of.
func (s *programs) own(ctx context.Context, in *kvpilotv1.ListProgramsRequest, page *programPage, out *kvpilotv1.ListProgramsResponse, of func(model string) bool) {
	who, ranks := s.senders.of(ctx), s.ranks()
	base := ledger.Filter{Own: !who.May(caller.Observe), Tenant: who.Tenant, Of: in.GetTenant(), States: programStates(in.GetStates())}
	if id := in.GetReplicaId(); id != "" {
		base.Slots = []replica.Slot{}
		for slot, at := range ranks {
			if at.replica == id {
				base.Slots = append(base.Slots, slot)
			}
		}
	}
	models := s.chooser.Programs(func(model string) (ledger.Filter, bool) {
		if in.GetModel() != "" && model != in.GetModel() || !of(model) {
			return ledger.Filter{}, false
		}
		f := base
		f.After = page.after(model)
		return f, true
	}, page.size+1)
	for i := range models {
		m := &models[i]
		for j := range m.Programs {
			out.Programs = append(out.Programs, programProto(m.Model, &m.Programs[j], ranks))
		}
		if !base.Own && m.Stats.Want() > 0 {
			out.Pressure = append(out.Pressure, pressureProto(m))
		}
	}
}

// ranks are the ranks of all replicas by slot.
func (s *programs) ranks() map[replica.Slot]rankKey {
	ranks := map[replica.Slot]rankKey{}
	for _, r := range s.pools.registry.Snapshot().Replicas {
		for rank, slot := range r.Slots {
			ranks[slot] = rankKey{string(r.ID), uint32(rank)}
		}
	}
	return ranks
}

func programProto(model string, p *ledger.Program, ranks map[replica.Slot]rankKey) *kvpilotv1.Program {
	at := ranks[p.Slot]
	out := &kvpilotv1.Program{
		ProgramId: programID(uint64(p.Name)), Model: model, Tenant: p.Tenant, State: programState(p.State), ReplicaId: at.replica, Rank: at.rank,
		ResidentTokens: uint64(max(0, p.Resident)), NeededTokens: uint64(max(0, p.Needed)),
		Calls: uint64(p.Calls), PromptTokens: uint64(p.Prompt), CachedTokens: uint64(p.Held), ParentId: programID(uint64(p.Parent)),
	}
	switch p.State {
	case ledger.StateWaiting:
		out.Wait = durationpb.New(p.Wait)
	case ledger.StateGap, ledger.StatePaused:
		out.Idle = durationpb.New(p.Idle)
	case ledger.StateNone, ledger.StateRunning:
	}
	return out
}

func pressureProto(m *chooser.ModelPrograms) *kvpilotv1.ProgramPressure {
	return &kvpilotv1.ProgramPressure{
		Model: m.Model, Placed: uint32(m.Stats.Placed), Paused: uint32(m.Stats.Paused), Waiting: uint32(m.Stats.Waiting),
		Replicas: uint32(m.Replicas), ReplicasNeeded: uint32(m.Needed),
	}
}

func programState(s ledger.State) kvpilotv1.ProgramState {
	switch s {
	case ledger.StateRunning:
		return kvpilotv1.ProgramState_PROGRAM_STATE_RUNNING
	case ledger.StateGap:
		return kvpilotv1.ProgramState_PROGRAM_STATE_GAP
	case ledger.StatePaused:
		return kvpilotv1.ProgramState_PROGRAM_STATE_PAUSED
	case ledger.StateWaiting:
		return kvpilotv1.ProgramState_PROGRAM_STATE_WAITING
	case ledger.StateNone:
	}
	return kvpilotv1.ProgramState_PROGRAM_STATE_UNSPECIFIED
}

// programStates are the states that a filter names.
func programStates(in []kvpilotv1.ProgramState) (list []ledger.State) {
	for s := ledger.StateRunning; s <= ledger.StateWaiting; s++ {
		if slices.Contains(in, programState(s)) {
			list = append(list, s)
		}
	}
	return list
}

// programPage is one answer of the list.
type programPage struct {
	size int
	last programPlace // the page begins behind it
	// end is the last place that the page may have: behind it, programs of another router are missing. Its zero value: any.
	end programPlace
}

func programPageOf(in *kvpilotv1.ListProgramsRequest) (programPage, error) {
	p := programPage{size: mostPrograms}
	if n := in.GetPageSize(); n > 0 {
		p.size = int(min(n, mostPrograms))
	}
	var err error
	p.last, _, err = readToken[programPlace](in)
	return p, err
}

// after is the name behind which the page's programs of a model begin.
func (p *programPage) after(model string) ledger.Name {
	switch cmp.Compare(model, p.last.Model) {
	case -1:
		return math.MaxUint64
	case 0:
		name, _ := strconv.ParseUint(p.last.ID, 16, 64) // of no program: from the first one on
		return ledger.Name(name)
	}
	return 0
}

// endAt ends the page at a place, unless it ends before.
func (p *programPage) endAt(at programPlace) {
	if p.end == (programPlace{}) || p.end.compare(at) > 0 {
		p.end = at
	}
}

// cut sorts the programs, keeps the page's, and sets the token of the next one.
func (p *programPage) cut(in *kvpilotv1.ListProgramsRequest, out *kvpilotv1.ListProgramsResponse) {
	slices.SortFunc(out.Programs, func(a, b *kvpilotv1.Program) int { return placeOfProgram(a).compare(placeOfProgram(b)) })
	slices.SortFunc(out.Pressure, func(a, b *kvpilotv1.ProgramPressure) int { return cmp.Compare(a.GetModel(), b.GetModel()) })
	n := 0
	for n < min(len(out.Programs), p.size) && (p.end == (programPlace{}) || placeOfProgram(out.GetPrograms()[n]).compare(p.end) <= 0) {
		n++
	}
	if n > 0 && (n < len(out.Programs) || p.end != (programPlace{})) {
		out.NextPageToken = tokenAfter(in, placeOfProgram(out.GetPrograms()[n-1]))
	}
	clear(out.Programs[n:])
	out.Programs = out.Programs[:n]
}

// decides reports whether this router decides for a model.
func (o *others) decides(model string) bool {
	return o.peers == nil || o.peers.Decider(model) == o.peers.Self().ID
}

// programsWide adds the programs of models for which other routers decide. It returns the ids of the routers that did not answer.
func (o *others) programsWide(ctx context.Context, in *kvpilotv1.ListProgramsRequest, models []string, page *programPage, out *kvpilotv1.ListProgramsResponse) (missing []string) {
	fleet := o.of(ctx)
	if fleet == nil {
		return nil
	}
	var peers []*forward.Peer
	for _, model := range models {
		by := fleet.Decider(model)
		if by == fleet.Self().ID || slices.Contains(missing, by) || slices.ContainsFunc(peers, func(p *forward.Peer) bool { return p.ID == by }) {
			continue
		}
		if p := fleet.Peer(by); p != nil {
			peers = append(peers, p)
		} else {
			missing, out.Unanswered = append(missing, by), append(out.Unanswered, by)
		}
	}
	answers, silent := forward.Gather(o.onward(ctx), peers, func(ctx context.Context, p *forward.Peer) (*kvpilotv1.ListProgramsResponse, error) {
		return p.Routing.ListPrograms(ctx, in)
	})
	out.Unanswered = append(out.Unanswered, silent...)
	for _, p := range peers {
		i := slices.IndexFunc(answers, func(a forward.Answer[*kvpilotv1.ListProgramsResponse]) bool { return a.From.ID == p.ID })
		if i < 0 {
			missing = append(missing, p.ID)
			continue
		}
		says := answers[i].Says
		out.Programs, out.Pressure = append(out.Programs, says.GetPrograms()...), append(out.Pressure, says.GetPressure()...)
		if list := says.GetPrograms(); says.GetNextPageToken() != "" && len(list) > 0 {
			page.endAt(placeOfProgram(list[len(list)-1]))
		}
	}
	return missing
}
