package kvevents

import (
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/sequence"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllm"
)

// replayer starts a replay; its batches and its end become events.
type replayer interface{ replay(r sequence.Request) }

// doubter is a Sink that may keep its blocks as a guess when lost events make it doubtful.
type doubter interface{ Doubt(slot replica.Slot) }

// follower executes the steps of one feed: it turns batches into events and executes the effects.
type follower struct {
	machine  sequence.Machine
	state    sequence.State
	slot     replica.Slot
	sink     Sink
	doubts   doubter // nil: the sink cannot
	journal  *journal
	metrics  *metrics
	replayer replayer
	event    sequence.Event    // the present one; its memory is reused
	effects  []sequence.Effect // of its step; their memory is reused
	problem  string            // the last one, to log with the change of state that it causes
	decoded  decoded
}

// decoded is the batch of the present event; the decoder owns its memory.
type decoded struct {
	batch *vllm.Batch
	contents
}

// contents sums up a batch.
type contents struct {
	kinds           [3]int // by vllm.Op
	stored, removed int    // blocks
	lower, emptied  bool
}

func (d *decoded) sum() {
	for i := range d.batch.Events {
		e := &d.batch.Events[i]
		d.kinds[e.Op]++
		switch e.Op {
		case vllm.OpStored:
			d.stored += len(e.Stored.Hashes)
			d.lower = d.lower || e.Stored.Tier != kvblock.TierGPU
		case vllm.OpRemoved:
			d.removed += len(e.Removed.Hashes)
			d.lower = d.lower || e.Removed.Tier != kvblock.TierGPU
		case vllm.OpCleared:
			d.emptied = d.emptied || e.Tier == kvblock.TierGPU && !d.lower
		}
	}
}

// begin makes the next event the present one.
func (f *follower) begin(kind sequence.Kind, now, at time.Time) *sequence.Event {
	f.event = sequence.Event{Kind: kind, Now: now, At: at}
	return &f.event
}

// handleBatch decodes the batch of the present event and handles the event. It reports whether the batch has to be passed again.
func (f *follower) handleBatch(d *vllm.Decoder, n numbered, payload []byte) (keep bool) {
	batch, err := d.Decode(payload)
	b := &f.event.Batch
	b.Mark = sequence.Mark{Seq: n.seq, Print: xxh3.Hash(payload), By: n.by}
	if f.decoded = (decoded{batch: batch}); err != nil {
		b.Err = err
		return f.handle()
	}
	f.decoded.sum()
	b.Stores, b.Lower, b.Emptied, b.Misfits = f.decoded.stored > 0, f.decoded.lower, f.decoded.emptied, batch.PrefixMisfits
	return f.handle()
}

// handle makes the step of the present event. It reports whether the event's batch has to be passed again.
func (f *follower) handle() (keep bool) {
	f.effects = f.machine.Step(&f.state, &f.event, f.effects[:0])
	for i := range f.effects {
		keep = keep || f.effects[i].Do == sequence.Keep
		f.execute(&f.effects[i])
	}
	return keep
}

func (f *follower) execute(effect *sequence.Effect) {
	switch effect.Do {
	case sequence.Keep: // handle reports it
	case sequence.Apply:
		f.apply()
	case sequence.Unreadable:
		f.journal.count(func(s *Status) { s.DecodeErrors++ })
		f.metrics.DecodeErrors.Add(background, 1)
		f.journal.warn(oddBatch, "a batch of KV events cannot be read", "batch", f.event.Batch.Seq, "error", f.event.Batch.Err)
	case sequence.Reset:
		f.sink.Reset(f.slot)
		f.journal.count(func(s *Status) { s.Resets++ })
		f.metrics.Resets.Add(effect.Reason)
	case sequence.Doubt:
		f.doubts.Doubt(f.slot)
	case sequence.Ask:
		f.replayer.replay(effect.Request)
	case sequence.ReplayFailed:
		f.metrics.ReplayFailures.Add(effect.Request.Why)
	case sequence.Gap:
		f.journal.count(func(s *Status) { s.Gaps++ })
		f.metrics.Gaps.Add(background, 1)
	case sequence.Restart:
		f.journal.count(func(s *Status) { s.Restarts++ })
	case sequence.Problem:
		f.problem = effect.Text
		f.journal.problem(effect.Text)
	case sequence.Foreign:
		f.metrics.Foreign.Add(background, 1)
		f.journal.foreign(effect.Request.At, effect.Text)
	case sequence.Cleared:
		f.journal.cleared(effect.Request.At)
	case sequence.Show:
		f.journal.shown(effect, f.problem)
		f.sink.SetState(f.slot, effect.State)
	}
}

// apply passes the present batch to the sink.
func (f *follower) apply() {
	batch := f.decoded.batch
	for i := range batch.Events {
		switch ev := &batch.Events[i]; ev.Op {
		case vllm.OpStored:
			f.sink.Store(f.slot, &ev.Stored)
		case vllm.OpRemoved:
			f.sink.Remove(f.slot, &ev.Removed)
		case vllm.OpCleared:
			f.sink.Clear(f.slot, ev.Tier, false)
		}
	}
	f.journal.remark(batch)
	lag := f.journal.applied(batch, &f.decoded.contents, f.event.At, f.event.Kind == sequence.Replayed)
	f.metrics.applied(batch, &f.decoded.contents, lag)
}

// position encodes how far the feed is, for another one; nil when none could continue there.
func (f *follower) position() []byte {
	if !f.machine.Followed {
		return nil
	}
	return f.state.Position()
}

// endTurn reports the state after several events.
func (f *follower) endTurn() {
	f.begin(sequence.Shown, time.Time{}, time.Time{})
	f.handle()
	f.journal.count(func(s *Status) {
		s.State, s.Connected, s.Recovering = f.state.Feed(), f.state.Connected(), f.state.Waiting()
		s.Next, s.Known = f.state.Next()
		s.Foreign = f.state.Foreign()
	})
}
