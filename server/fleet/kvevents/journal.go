package kvevents

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/sequence"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllm"
)

// journal is the Status of one feed and its log. It may be used by any goroutine.
type journal struct {
	log      *slog.Logger
	label    string
	endpoint string        // as it is set
	odd      atomic.Uint32 // the kinds of oddities that were logged

	mu     sync.Mutex
	status Status // guarded by mu
}

// The kinds of oddities that are logged once per feed; all of them are counted.
const (
	oddFrames = 1 << iota
	oddBatch
	oddTag
	oddField
	oddMisfit
)

// remark logs the parts of a batch that are not understood, the first time.
func (j *journal) remark(batch *vllm.Batch) {
	if batch.UnknownTags > 0 {
		j.warn(oddTag, "KV events of an unknown kind are skipped", "events", batch.UnknownTags)
	}
	if batch.UnknownFields > 0 {
		j.warn(oddField, "unknown fields of KV events are skipped", "fields", batch.UnknownFields)
	}
	if batch.PrefixMisfits > 0 {
		j.warn(oddMisfit, "KV events whose tokens do not match their hashes are skipped", "events", batch.PrefixMisfits)
	}
}

// warn logs an oddity, once for each kind.
func (j *journal) warn(kind uint32, text string, args ...any) {
	if j.odd.Or(kind)&kind == 0 {
		j.log.Warn(text, append([]any{"rank", j.label}, args...)...)
	}
}

// count changes the Status.
func (j *journal) count(change func(*Status)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change(&j.status)
}

// shown logs a change of state and the problem that came before it.
func (j *journal) shown(change *sequence.Effect, problem string) {
	if change.Was != change.State {
		j.log.Info("KV event feed", "rank", j.label, "state", change.State.String(), "was", change.Was.String(), "why", problem)
	}
}

// problem notes a problem that the follower has found.
func (j *journal) problem(text string) {
	j.log.Debug("KV event feed", "rank", j.label, "problem", text)
	j.note(text)
}

// cleared logs that a replay socket is right now.
func (j *journal) cleared(replay string) {
	j.log.Info("the replay socket belongs to the engine that publishes now", "rank", j.label, "replay", replay)
}

// foreign logs a replay socket of another engine.
func (j *journal) foreign(replay, why string) {
	j.log.Warn(ForeignReplay+": set events.replay to the replay_endpoint of the engine that publishes at events.endpoint",
		"rank", j.label, "endpoint", j.endpoint, "replay", replay, "why", why)
}

// connected counts a connection.
func (j *journal) connected(to replica.Events) {
	j.count(func(s *Status) {
		s.Connects++
		s.Endpoint, s.Replay = to.Endpoint, to.Replay
	})
}

// applied counts a batch and returns how long it has waited.
func (j *journal) applied(batch *vllm.Batch, c *contents, at time.Time, replayed bool) (lag time.Duration) {
	now := time.Now()
	lag = now.Sub(at)
	j.mu.Lock()
	defer j.mu.Unlock()
	s := &j.status
	s.Batches++
	if replayed {
		s.Replayed++
	}
	s.Stored += uint64(c.stored)
	s.Removed += uint64(c.removed)
	s.Unknown += uint64(batch.UnknownFields + batch.UnknownTags)
	s.Misfits += uint64(batch.Misfits)
	s.Lag, s.LastApplied = lag, now
	if batch.Time > 0 && batch.Time < 1e11 {
		s.LastEvent = time.UnixMilli(int64(batch.Time * 1000))
	}
	return lag
}

// note records an error.
func (j *journal) note(text string) {
	now := time.Now()
	j.count(func(s *Status) { s.LastError, s.LastErrorAt = text, now })
}

func (j *journal) report() Status {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.status
	if s.Foreign != "" {
		s.LastError = s.Foreign // whatever went wrong since matters less
	}
	return s
}
