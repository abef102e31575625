package ranks

import (
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// sink takes the events of all ranks into the index, and shows the tokenizer's parity guard
// the blocks that engines store.
type sink struct {
	*kvindex.Index
	ranks *Ranks
}

func (s sink) Store(slot replica.Slot, ev *kvblock.Stored) {
	r := s.ranks
	if r.watcher != nil {
		r.watcher.Stored(slot, ev)
	}
	s.Index.Store(slot, ev)
	r.followers.Chooser.Heard(slot) // blocks are stored by steps
	if ev.HasParent || ev.BlockSize <= 0 {
		return // only the beginnings of prompts are compared
	}
	if of, _, ok := r.Registry.Snapshot().BySlot(slot); ok && len(of.Models) > 0 {
		r.followers.Tokens.ObserveStored(of.Models[0].ID, slot, ev)
	}
}

func (s sink) SetState(slot replica.Slot, state kvblock.FeedState) {
	s.Index.SetState(slot, state)
	if state != kvblock.FeedExact {
		return
	}
	if of, _, ok := s.ranks.Registry.Snapshot().BySlot(slot); ok {
		s.ranks.Registry.Alive(of.ID)
	}
}

// feeds are the event feeds as the index sees them: where they stand, and where they may continue.
type feeds struct{ *Ranks }

func (f feeds) Still(slot replica.Slot, do func(position []byte)) { f.Events.Still(slot, do) }

func (f feeds) Continue(slot replica.Slot, position []byte, larger bool, fill func()) kvindex.Continued {
	switch f.Events.Continue(slot, position, larger, fill) {
	case kvevents.ContinuedHere:
		return kvindex.ContinuedHere
	case kvevents.ContinuedThere:
		return kvindex.ContinuedThere
	case kvevents.ContinuedNone:
	}
	return kvindex.ContinuedNone
}
