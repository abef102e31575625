package server

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/liveness"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/peers/forward"
)

// The methods below report changes of the fleet from the registry to the parts that keep state per
// rank. They are called in order, before a snapshot shows an addition and after one stopped
// showing a removal.

func (p *parts) RankAdded(slot replica.Slot, r *replica.Replica, rank int) {
	p.book.AddRank(slot)
	p.chooser.AddRank(slot, r, rank)
	info := kvindex.RankInfo{Rank: replica.Rank{Replica: r.ID, Index: rank}, BlockSize: r.BlockSize, Capacity: r.Blocks}
	if err := p.kvindex.AddRank(slot, info); err != nil {
		p.log.Error("a rank is not indexed", "replica", string(r.ID), "rank", rank, "error", err)
	}
	if rank < len(r.Events) && r.Events[rank].Endpoint != "" {
		p.events.Add(slot, r.Events[rank], rankName(r, rank))
		p.kvindex.Claim(slot)
	} else {
		p.kvindex.SetState(slot, kvblock.FeedNone)
	}
	p.stats.Add(slot, r, rank)
}

// rankName names a rank in logs and metrics: as its replica, with a number where there are several.
func rankName(r *replica.Replica, rank int) string {
	if len(r.Slots) < 2 {
		return string(r.ID)
	}
	return string(r.ID) + "/" + strconv.Itoa(rank)
}

// rankOf names the rank of a slot for metrics.
func (p *parts) rankOf(slot replica.Slot) (replica.Rank, bool) {
	if p.registry == nil { // metrics may be read before all parts are made
		return replica.Rank{}, false
	}
	r, rank, ok := p.registry.Snapshot().BySlot(slot)
	if !ok {
		return replica.Rank{}, false
	}
	return replica.Rank{Replica: r.ID, Index: rank}, true
}

func (p *parts) RankRemoved(slot replica.Slot) {
	p.stats.Remove(slot)
	p.events.Remove(slot)
	p.kvindex.RemoveRank(slot)
	p.chooser.RemoveRank(slot)
	if lost := p.book.RemoveRank(slot); lost > 0 {
		p.log.Warn("requests were in flight on a rank that is gone", "slot", slot, "requests", lost)
	}
}

// ReplicaRestarted drops what was believed of a former engine process. Ranks with events learn of it
// from their sequence numbers too; the first notice counts.
func (p *parts) ReplicaRestarted(r *replica.Replica, began time.Time) {
	for rank, slot := range r.Slots {
		p.book.Forget(slot, began)
		if rank >= len(r.Events) || r.Events[rank].Endpoint == "" {
			p.kvindex.Reset(slot)
		}
		p.events.Restarted(slot, began)
	}
}

// EngineStarted takes an engine's word on when its process began.
func (p *parts) EngineStarted(id replica.ID, at time.Time) {
	p.registry.NoteStart(id, at)
	p.kvindex.Began(id, at)
}

// FleetChanged follows each new view of the fleet.
func (p *parts) FleetChanged(s *registry.Snapshot) {
	for _, r := range s.Replicas {
		p.stats.Renew(r)
		if r.State == replica.StateReady && time.Since(r.Since) < time.Second && len(r.Slots) > 0 {
			p.stats.Ask(r.Slots[0]) // it may have been down, and looked at rarely
		}
		for rank, slot := range r.Slots {
			p.kvindex.UpdateRank(slot, kvindex.RankInfo{Rank: replica.Rank{Replica: r.ID, Index: rank}, BlockSize: r.BlockSize, Capacity: r.Blocks})
		}
	}
	p.breaker.Retain(func(id replica.ID) bool { _, known := s.Replica(id); return known })
	p.chooser.Changed()
	select {
	case p.changedFleet <- struct{}{}:
	default:
	}
}

func (p *parts) EngineLearned(id replica.ID, l enginestats.Learned) {
	p.registry.Learn(id, registry.Learned{BlockSize: l.BlockSize, Blocks: l.Blocks})
}

// EngineAnswered implements enginestats.Listener.
func (p *parts) EngineAnswered(id replica.ID) { p.registry.Alive(id) }

// EngineRestarted implements enginestats.Listener.
func (p *parts) EngineRestarted(id replica.ID, noticed time.Time) {
	p.registry.NoteRestart(id, noticed)
}

// InFlight implements enginestats.Load.
func (p *parts) InFlight(slot replica.Slot) int { return p.book.View(slot, time.Now()).InFlight }

// ready says why the router should get no requests now.
func (p *parts) ready() error {
	all := p.registry.Snapshot().Replicas
	states := map[string]int{}
	for _, r := range all {
		switch {
		case r.State == replica.StateReady && len(r.Models) > 0:
			return nil
		case r.State == replica.StateReady:
			states["ready without a model"]++
		default:
			states[r.State.String()]++
		}
	}
	if chooser.MostMute(all, time.Now()) {
		return nil
	}
	if len(all) == 0 {
		return errNoReplica
	}
	var list []string
	for _, state := range slices.Sorted(maps.Keys(states)) {
		list = append(list, fmt.Sprintf("%d %s", states[state], state))
	}
	return errors.New("no replica takes requests: " + strings.Join(list, ", "))
}

// forward passes calls on to the other routers; nil for a router alone.
func (p *parts) forward() *forward.Fleet {
	if p.peers == nil {
		return nil
	}
	return p.peers.Forward()
}

// background lists the parts with work of their own.
func (p *parts) background() []component {
	list := []component{
		{"registry", p.registry.Run},
		{"kvindex", p.kvindex.Run},
		{"kvevents", p.events.Run},
		{"enginestats", p.stats.Run},
		{"load", p.book.Run},
		{"chooser", p.chooser.Run},
		{"tokenizer", p.tokens.Run},
		{"upstream", p.upstream.Run},
		{"decisionlog", p.decisions.Run},
	}
	if p.peers != nil {
		list = append(list, component{"fleet", p.peers.Run})
	}
	return list
}

// sink takes the events of all ranks into the index, and shows the tokenizer's parity guard
// the blocks that engines store.
type sink struct {
	*kvindex.Index
	p *parts
}

func (s sink) Store(slot replica.Slot, ev *kvblock.Stored) {
	if s.p.stored != nil {
		s.p.stored(slot, ev)
	}
	s.Index.Store(slot, ev)
	s.p.chooser.Heard(slot) // blocks are stored by steps
	if ev.HasParent || ev.BlockSize <= 0 {
		return // only the beginnings of prompts are compared
	}
	if r, _, ok := s.p.registry.Snapshot().BySlot(slot); ok && len(r.Models) > 0 {
		s.p.tokens.ObserveStored(r.Models[0].ID, slot, ev)
	}
}

func (s sink) SetState(slot replica.Slot, state kvblock.FeedState) {
	s.Index.SetState(slot, state)
	if state != kvblock.FeedExact {
		return
	}
	if r, _, ok := s.p.registry.Snapshot().BySlot(slot); ok {
		s.p.registry.Alive(r.ID)
	}
}

// feeds are the event feeds as the index sees them: where they stand, and where they may continue.
type feeds struct{ p *parts }

func (f feeds) Still(slot replica.Slot, do func(position []byte)) { f.p.events.Still(slot, do) }

func (f feeds) Continue(slot replica.Slot, position []byte, larger bool, fill func()) kvindex.Continued {
	switch f.p.events.Continue(slot, position, larger, fill) {
	case kvevents.ContinuedHere:
		return kvindex.ContinuedHere
	case kvevents.ContinuedThere:
		return kvindex.ContinuedThere
	case kvevents.ContinuedNone:
	}
	return kvindex.ContinuedNone
}

// vitals is what shows whether a rank's engine lives and works, as the chooser asks it.
func (p *parts) vitals(slot replica.Slot, now time.Time) liveness.Vitals {
	r, _, ok := p.registry.Snapshot().BySlot(slot)
	if !ok {
		return liveness.Vitals{}
	}
	pulse := p.registry.Pulse(r.ID, now)
	v := liveness.Vitals{Asked: pulse.Asked, Late: pulse.Late, Answered: pulse.Answered, Unhealthy: r.State == replica.StateUnhealthy}
	if r.State == replica.StateDraining {
		drain := p.registry.Snapshot().Details(r.ID).Drain
		v.Leaving = drain != nil && drain.Move
	}
	if s, ok := p.stats.Stats(slot); ok {
		v.Counted, v.KVUsage, v.Requests = s.At, s.KVUsage, s.Running+s.Waiting
		v.Count = s.PromptTokens + s.OutputTokens + s.QueryTokens + s.Preemptions
	}
	return v
}

// report is what a rank's engine says of itself, as the chooser asks it.
func (p *parts) report(slot replica.Slot, now time.Time, prefilling int, to *chooser.Report) bool {
	s := p.stats.Last(slot)
	return s != nil && chooser.ReportOf(s, prefilling, now, to)
}

// textBeliefFor is how long a rank is believed to hold a prompt that is known by its text only,
// while no tokenizer answers: long enough for the next turn of a conversation.
const textBeliefFor = 10 * time.Minute

// believeText notes where a prompt went when its keys were made of its text.
func (p *parts) believeText(slot replica.Slot, hashes []blockhash.Hash) {
	if p.kvindex.State(slot) != kvblock.FeedNone {
		p.kvindex.Predict(slot, hashes, time.Now().Add(textBeliefFor))
	}
}
