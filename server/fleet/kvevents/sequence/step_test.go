package sequence_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/fleet/kvevents/sequence"
)

// feed plays events by hand. Its methods return the effects of one event in words.
type feed struct {
	t       *testing.T
	machine sequence.Machine
	state   sequence.State
	now     time.Time
	job     uint64 // of the last request
}

func newFeed(t *testing.T) *feed {
	f := &feed{t: t, now: time.Unix(1e9, 0), machine: sequence.Machine{Followed: true, Probe: 10 * time.Second, ForgetAfter: time.Minute}}
	f.state = sequence.New(f.now, true, 1)
	return f
}

func (f *feed) step(e sequence.Event) string {
	e.Now, e.At = f.now, f.now
	effects := f.machine.Step(&f.state, &e, nil)
	effects = f.machine.Step(&f.state, &sequence.Event{Kind: sequence.Shown, Now: f.now}, effects)
	var words []string
	for _, e := range effects {
		switch e.Do {
		case sequence.Apply:
			words = append(words, "apply")
		case sequence.Unreadable:
			words = append(words, "unreadable")
		case sequence.Keep:
			words = append(words, "keep")
		case sequence.Reset:
			words = append(words, "reset:"+e.Reason.String())
		case sequence.Doubt:
			words = append(words, "doubt")
		case sequence.Ask:
			f.job = e.Request.Job
			words = append(words, fmt.Sprintf("ask:%s:%d", e.Request.Why, e.Request.From))
		case sequence.ReplayFailed:
			words = append(words, "failed")
		case sequence.Gap:
			words = append(words, "gap")
		case sequence.Restart:
			words = append(words, "restart")
		case sequence.Foreign:
			words = append(words, "foreign")
		case sequence.Cleared:
			words = append(words, "cleared")
		case sequence.Show:
			words = append(words, e.State.String())
		case sequence.Problem:
		}
	}
	return strings.Join(words, " ")
}

// batch is the batch seq of an engine process.
func batch(process byte, seq uint64) sequence.Batch {
	return sequence.Batch{
		Mark:    sequence.Mark{Seq: seq, Print: uint64(process)<<32 | seq},
		Content: sequence.Content{Stores: true},
	}
}

func named(b sequence.Batch, process byte) sequence.Batch {
	b.By = sequence.Publisher{process}
	return b
}

func (f *feed) up(epoch uint64) string {
	return f.step(sequence.Event{Kind: sequence.Connected, Epoch: epoch, Link: sequence.Link{Replay: "tcp://r"}})
}

func (f *feed) down(epoch uint64) string {
	return f.step(sequence.Event{Kind: sequence.Disconnected, Epoch: epoch, Err: errors.New("lost")})
}

func (f *feed) live(epoch uint64, b sequence.Batch) string {
	return f.step(sequence.Event{Kind: sequence.Live, Epoch: epoch, Batch: b})
}

func (f *feed) replayed(b sequence.Batch) string {
	return f.step(sequence.Event{Kind: sequence.Replayed, Job: f.job, Batch: b})
}

func (f *feed) end(err error) string {
	return f.step(sequence.Event{Kind: sequence.ReplayEnded, Job: f.job, Err: err})
}

func (f *feed) tick(after time.Duration) string {
	f.now = f.now.Add(after)
	return f.step(sequence.Event{Kind: sequence.Tick})
}

// followed is a feed that is exact, with batches 0 and 1 of process 1 and the comparison done.
func followed(t *testing.T) *feed {
	f := newFeed(t)
	f.up(1)
	f.replayed(batch(1, 0))
	f.end(nil)
	f.live(1, batch(1, 1))
	f.replayed(batch(1, 1))
	f.end(nil)
	if got := f.live(1, batch(1, 1)); got != "apply" {
		t.Fatalf("the first live batch: %q", got)
	}
	return f
}

func TestStep(t *testing.T) {
	t.Parallel()
	lost := errors.New("lost")
	for _, tt := range []struct {
		name string
		play func(f *feed) []string
		want []string
	}{
		{"the next batch", func(f *feed) []string { return []string{f.live(1, batch(1, 2))} }, []string{"apply"}},
		{"a batch of an older connection", func(f *feed) []string { return []string{f.live(0, batch(1, 2))} }, []string{""}},
		{"a batch twice", func(f *feed) []string { return []string{f.live(1, batch(1, 1))} }, []string{""}},
		{"a gap that a replay fills", func(f *feed) []string {
			return []string{f.live(1, batch(1, 4)), f.replayed(batch(1, 1)), f.replayed(batch(1, 2)), f.replayed(batch(1, 3)), f.end(nil), f.live(1, batch(1, 4))}
		}, []string{"gap ask:gap:1 keep degraded", "", "apply", "apply", "exact", "apply"}},
		{"a gap that no replay fills", func(f *feed) []string {
			return []string{f.live(1, batch(1, 4)), f.replayed(batch(1, 1)), f.end(nil), f.live(1, batch(1, 4))}
		}, []string{"gap ask:gap:1 keep degraded", "", "exact", "reset:gap apply degraded"}},
		{"a replay that fails", func(f *feed) []string {
			return []string{f.live(1, batch(1, 4)), f.end(lost), f.end(lost), f.end(lost), f.live(1, batch(1, 4))}
		}, []string{"gap ask:gap:1 keep degraded", "failed ask:gap:1", "failed ask:gap:1", "failed exact", "reset:gap apply degraded"}},
		{"the numbering goes back", func(f *feed) []string {
			return []string{f.live(1, batch(2, 0)), f.end(nil), f.live(1, batch(2, 0))}
		}, []string{"reset:restart restart ask:first:0 keep cold", "exact", "ask:proof:0 keep"}},
		{"silence", func(f *feed) []string {
			return []string{f.tick(time.Second), f.tick(20 * time.Second), f.replayed(batch(1, 1)), f.replayed(batch(1, 2)), f.end(nil)}
		}, []string{"", "ask:probe:1", "", "apply", "gap"}},
		{"the same engine after a break", func(f *feed) []string {
			return []string{f.down(1), f.up(2), f.replayed(batch(1, 1)), f.end(nil)}
		}, []string{"degraded", "ask:resume:1", "", "exact"}},
		{"another engine after a break", func(f *feed) []string {
			return []string{f.down(1), f.up(2), f.replayed(batch(2, 1)), f.replayed(batch(2, 0)), f.end(nil)}
		}, []string{"degraded", "ask:resume:1", "reset:restart restart ask:first:0 cold", "apply", "exact"}},
		{"an engine that does not come back", func(f *feed) []string {
			return []string{f.down(1), f.tick(59 * time.Second), f.tick(2 * time.Second)}
		}, []string{"degraded", "", "reset:unreachable cold"}},
		{"a new process that others have seen", func(f *feed) []string {
			f.now = f.now.Add(time.Second)
			return []string{f.step(sequence.Event{Kind: sequence.Restarted}), f.end(nil)}
		}, []string{"reset:restart restart ask:first:0 cold", "exact"}},
		{"a message that is no batch", func(f *feed) []string { return []string{f.step(sequence.Event{Kind: sequence.Malformed})} }, []string{"degraded"}},
		{"a batch that cannot be read", func(f *feed) []string {
			bad := batch(1, 2)
			bad.Err = lost
			return []string{f.live(1, bad), f.replayed(batch(1, 1)), f.replayed(bad), f.end(nil)}
		}, []string{"unreadable ask:gap:1 degraded", "", "unreadable reset:unreadable", ""}},
		{"an answer to an older request", func(f *feed) []string {
			return []string{f.step(sequence.Event{Kind: sequence.Replayed, Job: 1, Batch: batch(1, 2)}), f.step(sequence.Event{Kind: sequence.ReplayEnded, Job: 1})}
		}, []string{"", ""}},
		// The number of another process may be the one that is expected.
		{"a number that no replay confirms", func(f *feed) []string {
			f.down(1)
			f.up(2)
			f.end(lost)
			f.end(lost)
			f.end(lost)
			return []string{f.live(2, batch(2, 2)), f.tick(20 * time.Second), f.replayed(batch(2, 2)), f.end(nil), f.tick(time.Second), f.replayed(batch(2, 0))}
		}, []string{"apply", "ask:proof:2", "", "", "ask:rebuild:0", "reset:rebuild apply cold"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := tt.play(followed(t)); !slices.Equal(got, tt.want) {
				t.Errorf("effects\n got %q\nwant %q", got, tt.want)
			}
		})
	}
}

// The name of the process shows a replay socket of another engine although its ring begins behind the live batch.
func TestReplaysThatNameAnotherProcess(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.up(1)
	f.replayed(named(batch(2, 5), 2))
	f.end(nil)
	got := []string{f.live(1, named(batch(1, 0), 1)), f.replayed(named(batch(2, 5), 2)), f.end(nil)}
	if want := []string{"ask:proof:0 keep", "", "reset:foreign cold"}; !slices.Equal(got, want) {
		t.Errorf("effects\n got %q\nwant %q", got, want)
	}
	if !strings.HasPrefix(f.state.Foreign(), sequence.ForeignReplay) {
		t.Errorf("Foreign() = %q", f.state.Foreign())
	}
}

// Equal states and events give equal effects, and a copy of a state is independent.
func TestAStateIsAValue(t *testing.T) {
	t.Parallel()
	f := followed(t)
	before := f.state
	first := f.live(1, batch(1, 9))
	after := f.state
	f.state = before
	if again := f.live(1, batch(1, 9)); again != first || f.state != after {
		t.Errorf("the same step gives %q and %q", first, again)
	}
}

func BenchmarkStep(b *testing.B) {
	machine := sequence.Machine{Followed: true, Probe: time.Second}
	now := time.Unix(1e9, 0)
	state := sequence.New(now, true, 1)
	e := sequence.Event{Kind: sequence.Connected, Now: now, At: now, Epoch: 1}
	out := machine.Step(&state, &e, nil)
	e = sequence.Event{Kind: sequence.Live, Now: now, At: now, Epoch: 1}
	e.Batch.Stores = true
	b.ReportAllocs()
	for b.Loop() {
		out = machine.Step(&state, &e, out[:0])
		e.Batch.Seq++
	}
	if len(out) != 1 || out[0].Do != sequence.Apply {
		b.Fatalf("effects %v", out)
	}
}
