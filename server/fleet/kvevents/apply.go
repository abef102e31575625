package kvevents

import (
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllm"
)

// apply passes a batch to the sink and advances. It reports false, and does nothing, when the
// batch cannot be read.
func (f *feed) apply(seq uint64, payload []byte, at time.Time, replayed bool) bool {
	batch, err := f.d.Decode(payload)
	if err != nil {
		f.count(func(s *Status) { s.DecodeErrors++ })
		f.plane.metrics.decodeErrors.Add(background, 1)
		f.noteProblem("batch %d: %v", seq, err)
		f.warn(oddBatch, "a batch of KV events cannot be read", "batch", seq, "error", err)
		return false
	}
	var stored, removed int
	for i := range batch.Events {
		e := &batch.Events[i]
		switch e.Op {
		case vllm.OpStored:
			stored += len(e.Stored.Hashes)
			f.pos.lower = f.pos.lower || e.Stored.Tier != kvblock.TierGPU
			f.plane.sink.Store(f.slot, &e.Stored)
		case vllm.OpRemoved:
			f.pos.lower = f.pos.lower || e.Removed.Tier != kvblock.TierGPU
			removed += len(e.Removed.Hashes)
			f.plane.sink.Remove(f.slot, &e.Removed)
		case vllm.OpCleared:
			f.plane.sink.Clear(f.slot, e.Tier, false)
			if e.Tier == kvblock.TierGPU && !f.pos.lower {
				f.pos.exact, f.pos.partial = true, false // what is there now is known: nothing
			}
		}
	}
	f.pos.dirty = f.pos.dirty || stored > 0
	if batch.PrefixMisfits > 0 {
		f.pos.exact = false
		f.noteProblem("batch %d: %d stores whose tokens do not match their hashes", seq, batch.PrefixMisfits)
	}
	f.remark(batch)
	f.advance(seq, payload)
	f.account(batch, stored, removed, at, replayed)
	return true
}

// The kinds of oddities that are logged once per feed; all of them are counted.
const (
	oddFrames = 1 << iota
	oddBatch
	oddTag
	oddField
	oddMisfit
)

// remark logs what a batch held that is not understood, the first time.
func (f *feed) remark(batch *vllm.Batch) {
	if batch.UnknownTags > 0 {
		f.warn(oddTag, "KV events of an unknown kind are skipped", "events", batch.UnknownTags)
	}
	if batch.UnknownFields > 0 {
		f.warn(oddField, "unknown fields of KV events are skipped", "fields", batch.UnknownFields)
	}
	if batch.PrefixMisfits > 0 {
		f.warn(oddMisfit, "KV events whose tokens do not match their hashes are skipped", "events", batch.PrefixMisfits)
	}
}

// warn logs an oddity, once for each kind. It may be called from any goroutine.
func (f *feed) warn(kind uint32, text string, args ...any) {
	if f.odd.Or(kind)&kind == 0 {
		f.plane.log.Warn(text, append([]any{"rank", f.label}, args...)...)
	}
}

// advance makes seq the last batch.
func (f *feed) advance(seq uint64, payload []byte) {
	f.pos.known, f.pos.next, f.pos.unproven = true, seq+1, false
	f.pos.print, f.pos.hasPrint = xxh3.Hash(payload), true
}

// damaged steps over a batch that cannot be read. It may have held removals, so nothing that was
// known before it can be relied on.
func (f *feed) damaged(seq uint64, payload []byte) {
	f.reset("unreadable")
	f.pos.exact = false
	f.advance(seq, payload)
}

// resetNames are the reasons of resets.
var resetNames = [...]string{"gap", "restart", "unreadable", "unreachable", "rebuild", "no feed", "foreign"}

// reset makes the sink forget the rank, if there is anything to forget.
func (f *feed) reset(reason string) {
	f.pos.exact = false
	if !f.pos.dirty {
		return
	}
	f.pos.dirty = false
	f.plane.sink.Reset(f.slot)
	f.count(func(s *Status) { s.Resets++ })
	f.plane.metrics.reset(reason)
}

// state is the feed's state now.
func (f *feed) state() kvblock.FeedState {
	switch {
	case f.events.Endpoint == "":
		return kvblock.FeedNone
	case !f.pos.known:
		return kvblock.FeedCold
	case f.rec != nil && f.rec.why == whyFirst:
		return kvblock.FeedCold
	case !f.conn.up || !f.conn.trusted || !f.pos.exact:
		return kvblock.FeedDegraded
	case f.rec != nil && f.rec.why == whyProof:
		if f.published.state != kvblock.FeedExact || f.replaySocket.foreign != "" {
			return kvblock.FeedDegraded // not exact before the comparison; a rank that is stays so for the moment that it takes
		}
	case f.unproven(), f.rec != nil && f.rec.why != whyProbe:
		return kvblock.FeedDegraded
	}
	return kvblock.FeedExact
}

// publish reports a change of state to the sink and updates the Status.
func (f *feed) publish() {
	state := f.state()
	if !f.published.any || state != f.published.state {
		if f.published.any {
			f.plane.log.Info("KV event feed", "rank", f.label, "state", state.String(), "was", f.published.state.String(), "why", f.published.problem)
		}
		f.published.any, f.published.state = true, state
		f.plane.sink.SetState(f.slot, state)
	}
	f.reportMu.Lock()
	defer f.reportMu.Unlock()
	s := &f.status
	s.State, s.Connected, s.Recovering = state, f.conn.up, f.rec != nil
	s.Next, s.Known = f.pos.next, f.pos.known
	s.Foreign = f.replaySocket.foreign
}

// count changes the report's counters.
func (f *feed) count(change func(*Status)) {
	f.reportMu.Lock()
	defer f.reportMu.Unlock()
	change(&f.status)
}

// account counts an applied batch.
func (f *feed) account(batch *vllm.Batch, stored, removed int, at time.Time, replayed bool) {
	now := time.Now()
	lag := now.Sub(at)
	unknown := batch.UnknownFields + batch.UnknownTags
	f.reportMu.Lock()
	s := &f.status
	s.Batches++
	if replayed {
		s.Replayed++
	}
	s.Stored += uint64(stored)
	s.Removed += uint64(removed)
	s.Unknown += uint64(unknown)
	s.Misfits += uint64(batch.Misfits)
	s.Lag, s.LastApplied = lag, now
	if batch.Time > 0 && batch.Time < 1e11 {
		s.LastEvent = time.UnixMilli(int64(batch.Time * 1000))
	}
	f.reportMu.Unlock()
	f.plane.metrics.applied(batch, stored, removed, lag)
}

// noteProblem notes what went wrong; it is logged with the change of state that it causes.
func (f *feed) noteProblem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	f.published.problem = text
	f.plane.log.Debug("KV event feed", "rank", f.label, "problem", text)
	f.note(text)
}

// note records an error from any goroutine.
func (f *feed) note(text string) {
	now := time.Now()
	f.count(func(s *Status) { s.LastError, s.LastErrorAt = text, now })
}

func (f *feed) report() Status {
	n, bytes := f.queue.size()
	f.reportMu.Lock()
	defer f.reportMu.Unlock()
	s := f.status
	s.Queued, s.QueuedBytes, s.Pauses = n, bytes, f.pauses.Load()
	if s.Foreign != "" {
		s.LastError = s.Foreign // whatever went wrong since matters less
	}
	return s
}
