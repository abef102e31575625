package sequence_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/sequence"
)

// block is one block of an engine's cache.
type block struct {
	id    int
	lower bool
}

// record is one batch that an engine has published.
type record struct {
	sequence.Mark
	stored, removed []block
	cleared         bool
	unreadable      bool
	misfits         int // stores that the decoder skips
}

var errUnreadable = errors.New("unreadable")

func (r *record) batch() sequence.Batch {
	b := sequence.Batch{Mark: r.Mark}
	if r.unreadable {
		b.Err = errUnreadable
		return b
	}
	lower := func(b block) bool { return b.lower }
	b.Content = sequence.Content{
		Stores: len(r.stored) > 0, Emptied: r.cleared, Misfits: r.misfits,
		Lower: slices.ContainsFunc(r.stored, lower) || slices.ContainsFunc(r.removed, lower),
	}
	return b
}

// apply changes a cache as the batch tells.
func (r *record) apply(held map[block]bool) {
	if r.cleared {
		maps.DeleteFunc(held, func(b block, _ bool) bool { return !b.lower })
	}
	for _, b := range r.stored {
		held[b] = true
	}
	for _, b := range r.removed {
		delete(held, b)
	}
}

// engine is the model of an engine process and those that follow it: its cache is the truth.
type engine struct {
	named    bool // its batches name the process
	size     int  // of the ring
	process  int
	next     uint64
	ring     []*record
	held     map[block]bool
	anyLower bool
	batches  *int // numbers all batches and blocks of a world
}

func (e *engine) restart() {
	*e.batches++
	e.process, e.next, e.ring, e.held, e.anyLower = *e.batches, 0, nil, map[block]bool{}, false
}

// publish makes a batch of what n says.
func (e *engine) publish(n byte) *record {
	*e.batches++
	r := &record{Mark: sequence.Mark{Seq: e.next, Print: uint64(*e.batches)}}
	if e.named {
		r.By = sequence.Publisher{byte(e.process), byte(e.process >> 8), 1}
	}
	e.next++
	fresh := block{id: *e.batches, lower: n&32 != 0}
	switch {
	case n%8 == 7 && !e.anyLower:
		r.cleared = true
		clear(e.held)
	case n%8 == 6:
		r.unreadable = n&16 != 0
		r.misfits = 1
		e.held[fresh] = true
	case n%8 == 5:
		r.stored = []block{fresh}
	}
	if n%8 < 5 {
		r.stored = []block{fresh}
		if n%8 > 2 {
			for b := range e.held {
				if len(r.removed) == 0 || b.id < r.removed[0].id {
					r.removed = []block{b} // the oldest
				}
			}
		}
	}
	e.anyLower = e.anyLower || fresh.lower && !r.cleared
	r.apply(e.held)
	e.ring = append(e.ring, r)
	if len(e.ring) > e.size {
		e.ring = e.ring[1:]
	}
	return r
}

// message is one event on its way to the machine.
type message struct {
	sequence.Event
	record *record
}

// world is one feed between engines: its inbox, its clock and its sink.
type world struct {
	machine sequence.Machine
	state   sequence.State
	now     time.Time
	engines [2]*engine // the first one publishes
	replay  int        // the replay socket that the next connection leads to; negative: none
	behind  [2]int     // the engines behind the replay sockets
	dead    bool       // the replay sockets do not answer
	batches int

	up      bool
	epoch   uint64
	inbox   []message // of the event socket
	request *sequence.Request
	answers []message
	from    int            // the engine that gave them
	held    map[block]bool // the sink
	shown   kvblock.FeedState
	saved   saved
	trace   []string
	last    string // state in trace
	logging bool
}

// saved is what another router has.
type saved struct {
	position []byte
	held     map[block]bool
	process  int
}

func (w *world) log(format string, args ...any) {
	if w.logging {
		w.trace = append(w.trace, fmt.Sprintf(format, args...))
	}
}

func newWorld(shape byte) *world {
	w := &world{now: time.Unix(1e9, 0), held: map[block]bool{}, behind: [2]int{0, 1}, shown: kvblock.FeedCold}
	for i := range w.engines {
		w.engines[i] = &engine{named: shape&1 != 0, size: max([]int{0, 3, 100, 100}[shape>>1&3], i), batches: &w.batches}
		w.engines[i].restart()
	}
	w.engines[1].publish(0)
	if shape&8 != 0 {
		w.replay = 1
	}
	if shape&16 != 0 {
		w.replay = -1
	}
	if w.replay < 0 || w.engines[0].size == 0 {
		w.engines[0].named = true // without replays only numbers show a restart
	}
	w.machine = sequence.Machine{Followed: true, Probe: time.Second, ForgetAfter: time.Minute}
	w.state = sequence.New(w.now, true, uint64(shape))
	return w
}

// step passes one event to the machine and executes what it demands.
func (w *world) step(m message) (keep bool) {
	m.Now = w.now
	effects := w.machine.Step(&w.state, &m.Event, nil)
	for i := range effects {
		switch e := &effects[i]; e.Do {
		case sequence.Keep:
			keep = true
		case sequence.Apply:
			m.record.apply(w.held)
		case sequence.Reset:
			clear(w.held)
		case sequence.Ask:
			w.request, w.answers = &e.Request, nil
		case sequence.Show:
			w.shown = e.State
		case sequence.Problem:
			w.log("  problem: %s", e.Text)
		case sequence.Unreadable, sequence.Doubt, sequence.ReplayFailed, sequence.Gap, sequence.Restart, sequence.Foreign, sequence.Cleared:
		}
		if do := effects[i].Do; do != sequence.Show && do != sequence.Problem {
			w.log("  effect %d %+v", do, effects[i].Request)
		}
	}
	next, known := w.state.Next()
	if line := fmt.Sprintf("  state %v next %d %v held %d", w.shown, next, known, len(w.held)); w.logging && line != w.last {
		w.last = line
		w.log("%s", line)
	}
	return keep
}

// pump passes the next event that has come, as a feed does: answers first, live batches while no replay runs.
func (w *world) pump() bool {
	switch {
	case len(w.answers) > 0:
		m := w.answers[0]
		w.answers = w.answers[1:]
		if m.record != nil {
			m.Batch = m.record.batch()
		}
		m.Ending = slices.ContainsFunc(w.inbox, func(i message) bool { return i.Kind == sequence.Disconnected || i.Kind == sequence.Connected })
		w.log("answer %d seq %d err %v", m.Kind, m.Batch.Seq, m.Err)
		w.step(m)
	case !w.state.Waiting() && len(w.inbox) > 0:
		m := w.inbox[0]
		if m.record != nil {
			m.Batch = m.record.batch()
		}
		w.log("event %d epoch %d seq %d", m.Kind, m.Epoch, m.Batch.Seq)
		if !w.step(m) {
			w.inbox = w.inbox[1:]
		}
	default:
		return false
	}
	w.step(message{Event: sequence.Event{Kind: sequence.Shown}})
	return true
}

// sockets are the addresses of the replay sockets.
var sockets = []string{"tcp://a", "tcp://b"}

func (w *world) connect() {
	if w.up {
		return
	}
	w.up = true
	w.epoch++
	var link sequence.Link
	if w.replay >= 0 {
		link.Replay = sockets[w.replay]
	}
	w.inbox = append(w.inbox, message{Event: sequence.Event{Kind: sequence.Connected, At: w.now, Epoch: w.epoch, Link: link}})
}

func (w *world) disconnect() {
	if w.up {
		w.up = false
		w.inbox = append(w.inbox, message{Event: sequence.Event{Kind: sequence.Disconnected, At: w.now, Epoch: w.epoch, Err: errLost}})
	}
}

var errLost = errors.New("connection lost")

// publish has the followed engine publish. Where it is lost, only a replay has it.
func (w *world) publish(n byte, lost bool) {
	r := w.engines[0].publish(n)
	w.log("publish %d %d lost %v: %+v", w.engines[0].process, r.Seq, lost || !w.up, *r)
	if w.up && !lost {
		w.inbox = append(w.inbox, message{Event: sequence.Event{Kind: sequence.Live, At: w.now, Epoch: w.epoch}, record: r})
	}
}

// serve answers the open request: whole, cut short with an error, or with a hole.
func (w *world) serve(n byte) {
	r := w.request
	if r == nil {
		return
	}
	w.request = nil
	end := message{Event: sequence.Event{Kind: sequence.ReplayEnded, At: w.now, Job: r.Job}}
	if w.dead {
		end.Err = errLost
		w.answers = append(w.answers, end)
		return
	}
	w.from = w.behind[slices.Index(sockets, r.At)]
	for _, rec := range w.engines[w.from].ring {
		if rec.Seq < r.From {
			continue
		}
		switch kind := n >> 6; {
		case kind == 1 && len(w.answers) >= int(n&7):
			end.Err = errLost
		case kind == 2 && len(w.answers) == int(n&7) && n&8 == 0:
			n |= 8 // this one is dropped
			continue
		}
		if end.Err != nil {
			break
		}
		w.answers = append(w.answers, message{Event: sequence.Event{Kind: sequence.Replayed, At: w.now, Job: r.Job}, record: rec})
		if r.One {
			break
		}
	}
	w.answers = append(w.answers, end)
}

// restart begins another process of an engine; its connections end.
func (w *world) restart(i int) {
	w.log("restart %d", i)
	if i == 0 {
		w.disconnect()
	}
	if len(w.answers) > 1 && w.from == i {
		end := w.answers[len(w.answers)-1]
		end.Err = errLost
		w.answers = append(w.answers[:len(w.answers)/2], end)
	}
	w.engines[i].restart()
	if i == 1 {
		w.engines[1].publish(0) // an empty ring is taken for the followed engine's
	}
}

func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	w.step(message{Event: sequence.Event{Kind: sequence.Tick, At: w.now, Queued: len(w.inbox) > 0}})
	w.step(message{Event: sequence.Event{Kind: sequence.Shown}})
}

// save takes what another router would give, or continues with it.
func (w *world) save(n byte) {
	if n&1 == 0 {
		w.saved = saved{w.state.Position(), maps.Clone(w.held), w.engines[0].process}
		return
	}
	at, ok := sequence.ParsePosition(w.saved.position)
	if w.replay < 0 || !ok || w.saved.process != w.engines[0].process || w.state.KnowsBetter(w.now, &at, len(w.saved.held) > len(w.held)) {
		return
	}
	w.log("continue")
	w.held = maps.Clone(w.saved.held)
	w.request, w.answers = nil, nil
	w.step(message{Event: sequence.Event{Kind: sequence.Continued, Position: &at}})
}

// act does one thing of a script.
func (w *world) act(op, n byte) {
	switch op % 16 {
	case 0, 1:
		w.publish(n, false)
	case 2:
		w.publish(n, true)
	case 3:
		w.restart(0)
	case 4:
		w.disconnect()
	case 5, 6:
		w.connect()
	case 7, 8:
		w.serve(n)
	case 9:
		w.pass(time.Duration(n) * 20 * time.Millisecond)
	case 10, 11:
		for range n%4 + 1 {
			w.pump()
		}
	case 12:
		w.exchange(n)
	case 13:
		w.engines[1].publish(n)
		if n%8 == 0 {
			w.restart(1)
		}
	case 14:
		w.save(n)
	case 15:
		w.odd(n)
	}
}

// exchange changes the replay socket of the next connection, or what is behind it now.
func (w *world) exchange(n byte) {
	switch {
	case n%4 == 0:
		w.dead = !w.dead
	case n%4 == 1 && w.state.Foreign() != "":
		w.behind[1] = 0 // the right engine comes to the wrong address
	case w.replay >= 0:
		w.replay = int(n % 2)
	}
	w.log("asked %d %v dead %v", w.replay, w.behind, w.dead)
}

// odd does what is rare.
func (w *world) odd(n byte) {
	switch n % 4 {
	case 0:
		w.engines[0].next++ // a number without a batch
	case 1:
		if len(w.inbox) > 0 && w.inbox[len(w.inbox)-1].Kind == sequence.Live {
			w.inbox = w.inbox[:len(w.inbox)-1] // its frames are damaged
			w.step(message{Event: sequence.Event{Kind: sequence.Malformed}})
		}
	case 2:
		w.step(message{Event: sequence.Event{Kind: sequence.Restarted, At: w.now}})
	case 3:
		if k := len(w.inbox); k > 0 && w.inbox[k-1].Kind == sequence.Live {
			w.inbox = append(w.inbox, w.inbox[k-1]) // delivered twice
		}
	}
}

// settle lets everything arrive, has the engine publish, and waits until the clock brings no news.
func (w *world) settle() bool {
	w.log("settle")
	w.dead = false
	for round := range 160 {
		w.connect()
		for range 10_000 {
			if !w.pump() {
				if w.request == nil {
					break
				}
				w.serve(0)
			}
		}
		if w.state.Waiting() || len(w.inbox) > 0 {
			return false
		}
		if round == 20 || round == 40 || round == 140 {
			w.publish(0, false)
		}
		w.pass(500 * time.Millisecond)
	}
	return true
}

// run plays a script and reports what is wrong at its end.
func run(script []byte, logging bool) (w *world, wrong string) {
	w = newWorld(script[0])
	w.logging = logging
	for i := 1; i+1 < len(script); i += 2 {
		w.act(script[i], script[i+1])
	}
	if !w.settle() {
		return w, "the feed waits although nothing is under way"
	}
	truth := w.engines[0].held
	switch {
	case w.shown == kvblock.FeedCold:
		return w, "the feed is cold although batches came"
	case w.shown == kvblock.FeedExact && !maps.Equal(w.held, truth):
		return w, fmt.Sprintf("exact with %v, the engine holds %v", w.held, truth)
	}
	for b := range w.held {
		if !truth[b] {
			return w, fmt.Sprintf("%v with %v, the engine holds %v", w.shown, w.held, truth)
		}
	}
	return w, ""
}

// check plays a script and fails the test with its trace if something is wrong at its end. It returns the state at the end.
func check(t *testing.T, script []byte) kvblock.FeedState {
	t.Helper()
	w, wrong := run(script, false)
	if wrong != "" {
		w, _ = run(script, true)
		for _, line := range w.trace {
			t.Log(line)
		}
		t.Fatalf("%s: script %#v", wrong, script)
	}
	return w.shown
}

// scripts plays scripts of dice and counts the states that they end in.
func scripts(t *testing.T, make func(dice *rand.Rand) []byte) map[kvblock.FeedState]int {
	t.Helper()
	seeds := uint64(500)
	if testing.Short() {
		seeds = 100
	}
	ends := map[kvblock.FeedState]int{}
	for seed := range seeds {
		script := make(rand.New(rand.NewPCG(seed, 7)))
		ends[check(t, script)]++
	}
	return ends
}

// After quiet the sink has no block that the engine lacks, and all of them if the state is exact.
func TestWhateverHappensExactIsTrue(t *testing.T) {
	t.Parallel()
	ends := scripts(t, func(dice *rand.Rand) []byte {
		script := []byte{byte(dice.Uint32())}
		for range dice.IntN(120) {
			script = append(script, byte(dice.Uint32()), byte(dice.Uint32()))
		}
		return script
	})
	if ends[kvblock.FeedExact] == 0 || ends[kvblock.FeedDegraded] == 0 {
		t.Errorf("the scripts end in the states %v only", ends)
	}
}

// Lost batches, broken connections, replays that break and a few restarts leave no mark where the ring holds everything.
func TestWhatReplaysRepairEndsExact(t *testing.T) {
	t.Parallel()
	ends := scripts(t, func(dice *rand.Rand) []byte {
		script, restarts := []byte{4 + byte(dice.IntN(2))}, 0 // a ring of 100
		for range dice.IntN(60) {
			op := []byte{0, 0, 2, 3, 4, 5, 7, 8, 9, 10}[dice.IntN(10)]
			n := byte(dice.IntN(4)*64 + 1 + dice.IntN(4)) // a replay has its first batch: where that is lost, the ring seems to begin later
			if op == 3 {
				if restarts++; restarts > 4 {
					continue
				}
			}
			script = append(script, op, n)
		}
		return script
	})
	// A batch that two replays lack is taken for one that the engine has not.
	if others := ends[kvblock.FeedDegraded]; others > max(1, ends[kvblock.FeedExact]/100) {
		t.Errorf("the scripts end in the states %v", ends)
	}
}

// FuzzModel holds the machine to the model with scripts that reach new code.
func FuzzModel(f *testing.F) {
	for shape := range byte(32) {
		f.Add([]byte{shape, 5, 0, 10, 3, 7, 0, 10, 3, 0, 0, 0, 3, 10, 3, 7, 0, 10, 3, 2, 4, 0, 0, 10, 0, 7, 66, 10, 3, 3, 0, 5, 0, 0, 1, 0, 2, 10, 3})
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 0 && len(script) <= 400 {
			check(t, script)
		}
	})
}
