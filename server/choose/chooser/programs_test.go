package chooser_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// small makes every rank's memory 2,000 blocks: 32,000 tokens.
func (f *fleet) small() {
	for _, r := range f.replicas {
		r.Blocks = 2000
	}
}

// session is a call of a session.
func (f *fleet) session(name string, number, n int) *chooser.Request {
	req := f.request(number, n)
	req.Session, req.Tenant = name, "agents"
	return req
}

// teachPrograms has sessions return after a second, until the tenant's sessions are known as programs.
func (f *fleet) teachPrograms() { f.teachProgramsOf("m") }

func (f *fleet) teachProgramsOf(model string) {
	f.t.Helper()
	for turn := range 8 {
		req := f.session("teacher", 900, 100)
		req.Model = model
		if turn == 7 {
			req.SessionReturn = chooser.NoReturn
		}
		f.serve(f.choose(req))
		time.Sleep(time.Second)
	}
}

// serve ends a call as an engine would.
func (f *fleet) serve(c *chooser.Choice) {
	c.FirstToken()
	c.Release(chooser.Result{End: decision.EndCompleted, PromptTokens: c.Decision.PromptTokens, OutputTokens: 10, CachedTokens: 0})
}

// submit is Submit with the outcome in a channel.
func (f *fleet) submit(req *chooser.Request) (*chooser.Waiting, chan error, chan *chooser.Choice) {
	errs, choices := make(chan error, 1), make(chan *chooser.Choice, 1)
	w := f.chooser.Submit(req, time.Time{}, func(c *chooser.Choice, err error) {
		if err != nil {
			errs <- err
			return
		}
		choices <- c
	})
	return w, errs, choices
}

func TestProgramsWaitForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		f.small()
		f.know()
		defer f.running(t.Context())()
		f.teachPrograms()
		one, two := f.choose(f.session("one", 1, 16000)), f.choose(f.session("two", 2, 16000))
		if one.Slot == two.Slot {
			t.Fatalf("both programs are on rank %d, want one on each", one.Slot)
		}
		one.FirstToken()
		two.FirstToken()
		_, errs, third := f.submit(f.session("three", 3, 16000))
		time.Sleep(20 * time.Second)
		select {
		case c := <-third:
			t.Fatalf("a third program of half the memory is placed on rank %d", c.Slot)
		case err := <-errs:
			t.Fatal(err)
		default:
		}
		f.hasPrograms(map[programs.State]int{programs.StateRunning: 2, programs.StateWaiting: 1})
		chat := f.request(4, 2000)
		chat.Session, chat.Tenant = "chat", "chats"
		began := time.Now()
		f.serve(f.choose(chat))
		f.serve(f.choose(f.request(5, 2000)))
		if took := time.Since(began); took > time.Second {
			t.Errorf("requests of other tenants wait %s behind the program", took)
		}
		one.Release(chooser.Result{End: decision.EndCompleted, PromptTokens: 16000, OutputTokens: 10})
		time.Sleep(time.Second)
		one = f.choose(f.session("one", 1, 17000)) // in its gap it kept its place
		one.FirstToken()
		last := f.session("two", 2, 16000)
		two.Release(chooser.Result{End: decision.EndCompleted, PromptTokens: 16000, OutputTokens: 10})
		last.SessionReturn = chooser.NoReturn
		f.serve(f.choose(last))
		time.Sleep(time.Second)
		select {
		case c := <-third:
			if c.Slot != two.Slot {
				t.Errorf("the third program is on rank %d, want the one that has room, %d", c.Slot, two.Slot)
			}
			if c.Decision.Held < 20*time.Second {
				t.Errorf("held %s, want the time that it waited", c.Decision.Held)
			}
			vetoed := false
			for _, cand := range c.Decision.List() {
				vetoed = vetoed || cand.Slot == one.Slot && cand.Veto == decision.VetoMemory
			}
			if !vetoed {
				t.Error("the decision does not name the rank without memory")
			}
			if w := c.Decision.Memory; w == nil || w.Tokens < 16000 || w.Free >= w.Tokens || w.Before != 0 || w.Waited < 20*time.Second || w.Waited > c.Decision.Held || w.Program == 0 {
				t.Errorf("the decision names the wait %+v, held %s", w, c.Decision.Held)
			}
			f.serve(c)
		default:
			t.Error("the third program still waits")
		}
		f.serve(one)
		f.hasPrograms(map[programs.State]int{programs.StateGap: 2})
		f.empty()
	})
}

// An alias and an adapter are served from the memory of their replica: what programs of one model claim is not free for another's.
func TestModelsOfOneReplicaShareItsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		f := newFleet(t, 1, func(_ *chooser.Config, p *chooser.Params) {
			p.Scope = scope.Measured(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
		})
		f.small()
		f.replicas[0].Models = append(f.replicas[0].Models, replica.Model{ID: "adapter"})
		f.know()
		defer f.running(t.Context())()
		f.teachPrograms()
		f.teachProgramsOf("adapter")
		f.serve(f.choose(f.session("one", 1, 16000)))
		other := f.session("two", 2, 16000)
		other.Model = "adapter"
		_, errs, second := f.submit(other)
		time.Sleep(2 * time.Second)
		select {
		case <-second:
			t.Error("a program of another model has the place of one in its gap")
		case err := <-errs:
			t.Fatal(err)
		default:
		}
		if needed := collected(t, reader, "kvpilot.chooser.program_replicas_needed"); len(needed) != 1 || needed[""] != 2 {
			t.Errorf("%v replicas are needed for two programs of which one fills the memory, want 2", needed)
		}
		last := f.session("one", 1, 17000)
		last.SessionReturn = chooser.NoReturn
		f.serve(f.choose(last))
		select {
		case c := <-second:
			f.serve(c)
		case err := <-errs:
			t.Fatal(err)
		case <-time.After(time.Second):
			t.Error("the program of another model still waits when the memory is free")
		}
	})
}

// hasPrograms checks the list of programs: how many are in each state, and that its counts say the same.
func (f *fleet) hasPrograms(want map[programs.State]int) {
	f.t.Helper()
	list := f.chooser.Programs(func(string) (programs.Filter, bool) { return programs.Filter{Own: true, Tenant: "agents"}, true }, 100)
	if len(list) != 1 {
		f.t.Fatalf("%d models have programs, want 1", len(list))
	}
	got := map[programs.State]int{}
	for _, p := range list[0].Programs {
		got[p.State]++
		switch {
		case p.State == programs.StateWaiting && (p.Wait < 20*time.Second || p.Needed < 16000 || p.Slot != replica.NoSlot || p.Resident != 0 || p.Calls != 0),
			p.State == programs.StateRunning && (p.Needed < 16000 || p.Slot == replica.NoSlot || p.Resident < 16000 || p.Calls != 1),
			p.State == programs.StateGap && (p.Resident < 16000 || p.Needed < p.Resident || p.Calls == 0 || p.Prompt < 16000):
			f.t.Errorf("program %+v", p)
		}
	}
	if !maps.Equal(got, want) {
		f.t.Errorf("programs by state %v, want %v", got, want)
	}
	m := list[0]
	if placed := want[programs.StateRunning] + want[programs.StateGap]; m.Stats.Placed != placed || m.Stats.Waiting != want[programs.StateWaiting] || m.Replicas != 2 {
		f.t.Errorf("counts %+v of %d replicas, want %v", m.Stats, m.Replicas, want)
	}
	if more := want[programs.StateWaiting] > 0; (m.Needed > m.Replicas) != more {
		f.t.Errorf("%d replicas are needed, with %d there are and %d programs that wait", m.Needed, m.Replicas, want[programs.StateWaiting])
	}
}

// A program that waits leaves at once when its caller does, and its place in line is free.
func TestWhoLeavesTheLineForMemoryIsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		f.small()
		f.know()
		defer f.running(t.Context())()
		f.teachPrograms()
		first := f.choose(f.session("one", 1, 20000))
		first.FirstToken()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := f.chooser.Choose(ctx, f.session("two", 2, 20000)); !errors.Is(err, context.DeadlineExceeded) && !errors.As(err, new(*chooser.Refused)) {
			t.Errorf("Choose = %v, want the end of its context", err)
		}
		w, errs, choices := f.submit(f.session("three", 3, 20000))
		if w == nil || !w.Leave() {
			t.Fatal("the caller cannot leave")
		}
		if w.Leave() {
			t.Error("a caller leaves twice")
		}
		first.Release(chooser.Result{End: decision.EndCompleted, PromptTokens: 20000, OutputTokens: 10})
		time.Sleep(10 * time.Minute)
		select {
		case <-errs:
			t.Error("an outcome is delivered to a caller that left")
		case <-choices:
			t.Error("a choice is delivered to a caller that left")
		default:
		}
		if n := f.chooser.Waiting(); n != 0 {
			t.Errorf("%d requests wait", n)
		}
		f.empty()
	})
}

// A program that lost its place goes before new programs that wait longer, and small new ones do not take the memory that it waits for.
func TestProgramsThatHaveBegunGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		f.small()
		f.know()
		defer f.running(t.Context())()
		f.teachPrograms()
		f.serve(f.choose(f.session("begun", 1, 14000)))
		f.serve(f.choose(f.session("large", 2, 13000)))
		large := f.choose(f.session("large", 2, 20000)) // both do not fit any more
		large.FirstToken()
		_, _, longer := f.submit(f.session("new", 3, 13000))
		time.Sleep(5 * time.Second)
		_, _, begun := f.submit(f.session("begun", 1, 15000))
		time.Sleep(time.Second)
		_, _, small := f.submit(f.session("small", 4, 2000))
		time.Sleep(20 * time.Second)
		select {
		case <-begun:
			t.Fatal("a program returns to a rank without memory for it")
		case <-longer:
			t.Fatal("a new program begins on a rank without memory for it")
		case <-small:
			t.Error("a small new program takes the memory that a program that has begun waits for")
		default:
		}
		large.Release(chooser.Result{End: decision.EndCompleted, PromptTokens: 20000, OutputTokens: 10})
		last := f.session("large", 2, 21000)
		last.SessionReturn = chooser.NoReturn
		f.serve(f.choose(last))
		time.Sleep(time.Second)
		select {
		case c := <-begun:
			f.serve(c)
		default:
			t.Error("the program that has begun still waits when there is memory for it")
		}
		select {
		case <-longer:
			t.Error("a new program that waits longer goes before the program that has begun")
		default:
		}
		select {
		case c := <-small:
			f.serve(c)
		default:
			t.Error("a small new program still waits where much is free")
		}
		end := f.session("begun", 1, 16000)
		end.SessionReturn = chooser.NoReturn
		f.serve(f.choose(end))
		time.Sleep(time.Second)
		select {
		case c := <-longer:
			f.serve(c)
		default:
			t.Error("the new program waits for ever")
		}
		f.empty()
	})
}

// The wait for memory has the hold queue's bound.
func TestTheWaitForMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, func(c *chooser.Config, _ *chooser.Params) { c.Queue.MaxWait = 40 * time.Second })
		f.small()
		f.know()
		defer f.running(t.Context())()
		f.teachPrograms()
		first := f.choose(f.session("one", 1, 20000))
		first.FirstToken()
		began := time.Now()
		_, err := f.chooser.Choose(context.Background(), f.session("two", 2, 20000))
		var refused *chooser.Refused
		if !errors.As(err, &refused) || refused.Cause != "memory" {
			t.Errorf("Choose = %v, want a refusal for the memory that did not become free", err)
		}
		if took := time.Since(began); took < 40*time.Second || took > 41*time.Second {
			t.Errorf("refused after %s, want 40 s", took)
		}
		f.serve(first)
		f.empty()
	})
}

// Many programs that come and go under pressure all end, and none waits for ever.
func TestProgramsUnderPressureAllEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		f.small()
		f.know()
		defer f.running(t.Context())()
		f.teachPrograms()
		const programs, turns = 24, 6
		ended := make(chan error, programs)
		for p := range programs {
			go func() {
				for turn := range turns {
					req := f.session(fmt.Sprintf("p%d", p), p+10, 4000+2000*turn)
					if turn == turns-1 {
						req.SessionReturn = chooser.NoReturn
					}
					c, err := f.chooser.Choose(context.Background(), req)
					if err != nil {
						ended <- fmt.Errorf("program %d, turn %d: %w", p, turn, err)
						return
					}
					time.Sleep(time.Second)
					c.FirstToken()
					time.Sleep(time.Second)
					f.serve(c)
					time.Sleep(2 * time.Second)
				}
				ended <- nil
			}()
		}
		for range programs {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if n := f.chooser.Waiting(); n != 0 {
			t.Errorf("%d requests wait", n)
		}
		f.empty()
	})
}

func TestShutdownRefusesProgramsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		f.small()
		f.know()
		stop := f.running(t.Context())
		f.teachPrograms()
		first := f.choose(f.session("one", 1, 20000))
		_, errs, _ := f.submit(f.session("two", 2, 20000))
		synctest.Wait()
		stop()
		var refused *chooser.Refused
		select {
		case err := <-errs:
			if !errors.As(err, &refused) || refused.Cause != "shutdown" {
				t.Errorf("outcome = %v, want a refusal for the shutdown", err)
			}
		default:
			t.Error("the waiting program has no outcome")
		}
		f.serve(first)
	})
}

// once is the only call of a program that takes most of a rank's memory.
func (f *fleet) once(name string, number int) *chooser.Request {
	req := f.session(name, number, 20000)
	req.SessionReturn = chooser.NoReturn
	return req
}

// A program with a target that its wait for memory exceeds is refused at once, with the wait in words and a hint for the retry.
func TestATargetBelowTheWaitForMemoryIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		f.small()
		f.know()
		defer f.running(t.Context())()
		f.teachPrograms()
		current := f.choose(f.once("p0", 1))
		for n := 10; n < 16; n++ { // one program is admitted every 20 s
			_, _, next := f.submit(f.once(fmt.Sprint("p", n), n))
			time.Sleep(20 * time.Second)
			f.serve(current)
			time.Sleep(time.Second)
			current = <-next
			current.FirstToken()
		}
		f.submit(f.session("before", 50, 20000))
		req := f.session("late", 51, 20000)
		req.Options.Targets.TTFT = 20 * time.Second
		began := time.Now()
		_, err := f.chooser.Choose(t.Context(), req)
		var refused *chooser.Refused
		if !errors.As(err, &refused) || refused.Cause != "target" || refused.Memory == nil {
			t.Fatalf("Choose = %v, want a refusal for the target with the wait for memory", err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("refused after %s, want at once", took)
		}
		if w := refused.Memory; w.Before != 1 || w.Tokens < 20000 || w.Expected < 20*time.Second || w.Expected > 2*time.Minute || refused.RetryAfter < w.Expected/2 {
			t.Errorf("the wait is %+v with a retry after %s", w, refused.RetryAfter)
		}
		patient := f.session("patient", 52, 20000)
		patient.Options.Targets.TTFT = time.Hour
		if w, errs, _ := f.submit(patient); w == nil {
			t.Errorf("a program with a target of an hour does not wait: %v", <-errs)
		} else {
			w.Leave()
		}
		f.serve(current)
	})
}

// A subagent goes before programs that have waited for longer, and its agent keeps its place while it works.
func TestSubagentsGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		f.small()
		f.know()
		defer f.running(t.Context())()
		f.teachPrograms()
		agent := f.choose(f.session("agent", 1, 16000))
		agent.FirstToken()
		other := f.choose(f.session("other", 2, 8000))
		other.FirstToken()
		_, _, waiting := f.submit(f.session("waiting", 3, 16000))
		time.Sleep(time.Minute)
		agent.Release(chooser.Result{End: decision.EndCompleted, PromptTokens: 16000, OutputTokens: 10})
		_, _, child := f.submit(f.session("agent/child", 4, 12000))
		time.Sleep(time.Second)
		select {
		case <-child:
			t.Fatal("the child is admitted beyond the memory")
		default:
		}
		end := f.session("other", 5, 8000)
		end.SessionReturn = chooser.NoReturn
		other.Release(chooser.Result{End: decision.EndCompleted, PromptTokens: 8000, OutputTokens: 10})
		f.serve(f.choose(end))
		time.Sleep(time.Second)
		var c *chooser.Choice
		select {
		case c = <-child:
		case c := <-waiting:
			t.Fatalf("the program that waited goes first, on rank %d", c.Slot)
		default:
			t.Fatal("the child waits for memory that its agent keeps for it")
		}
		c.FirstToken()
		time.Sleep(3 * time.Minute) // far longer than a gap
		select {
		case <-waiting:
			t.Error("a program takes the place of an agent with a child at work")
		default:
		}
		f.serve(c)
	})
}

// prompt is a call without a session.
func (f *fleet) prompt(number, n int) *chooser.Request {
	req := f.request(number, n)
	req.Tenant = "prompts"
	return req
}

// Callers that name no session have programs, too: a prompt that continues the one before is the next call.
func TestPromptsAreProgramsWithoutASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		f.small()
		f.know()
		defer f.running(t.Context())()
		for turn := range 12 {
			f.serve(f.choose(f.prompt(900, 1600+200*turn)))
			time.Sleep(time.Second)
		}
		time.Sleep(10 * time.Minute) // its claim is gone
		first := f.choose(f.prompt(1, 20000))
		first.FirstToken()
		_, errs, second := f.submit(f.prompt(2, 20000))
		time.Sleep(5 * time.Second)
		select {
		case c := <-second:
			t.Fatalf("a second program of two thirds of the memory is placed on rank %d", c.Slot)
		case err := <-errs:
			t.Fatal(err)
		default:
		}
		f.serve(first)
		time.Sleep(time.Second)
		next := f.choose(f.prompt(1, 21000)) // its place is kept in the gap
		next.FirstToken()
		select {
		case <-second:
			t.Error("the second program takes the place of one that is in its gap")
		default:
		}
		next.Release(chooser.Result{End: decision.EndCompleted, PromptTokens: 21000, OutputTokens: 10})
		time.Sleep(20 * time.Minute)
		select {
		case c := <-second:
			f.serve(c)
		case err := <-errs:
			t.Logf("the wait is bounded: %v", err)
		default:
			t.Error("the second program still waits")
		}
		f.empty()
	})
}

// A router that becomes the decider counts the programs of the calls in flight that it is given.
func TestAdoptedProgramsHoldTheirMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		there, here := newFleet(t, 1, nil), newFleet(t, 1, nil)
		for _, f := range []*fleet{there, here} {
			f.small()
			f.know()
			defer f.running(t.Context())()
			f.teachPrograms()
		}
		req := there.session("one", 1, 20000)
		original := there.choose(req)
		mine := *req
		mine.Replicas = here.replicas
		c, err := here.chooser.Adopt(&mine, decided(original, req))
		if err != nil {
			t.Fatal(err)
		}
		c.FirstToken()
		w, _, choices := here.submit(here.session("two", 2, 20000))
		time.Sleep(3 * time.Second)
		select {
		case <-choices:
			t.Fatal("a program begins on the memory of one that was handed over")
		default:
		}
		here.serve(c)
		time.Sleep(time.Second)
		again := here.choose(here.session("one", 1, 21000)) // its next call comes here
		again.FirstToken()
		if !w.Leave() {
			t.Error("the other program begins in the gap")
		}
		here.serve(again)
		there.serve(original)
	})
}

// The time that a program waited for memory is no seniority in the hold queue: its whole context may have to be computed, and chats of the
// same tenant would wait for that.
func TestAWaitForMemoryIsNoSeniority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		f.small()
		f.know()
		defer f.running(t.Context())()
		f.teachPrograms()
		first := f.choose(f.once("one", 1))
		first.FirstToken()
		_, _, program := f.submit(f.session("two", 2, 8000))
		time.Sleep(2 * time.Minute)
		busy := f.choose(f.request(3, 9000))
		chat := f.request(4, 4000)
		chat.Tenant = "agents"
		_, _, chatted := f.submit(chat)
		synctest.Wait()
		f.serve(first) // now there is memory, and the program waits for the rank
		time.Sleep(30 * time.Millisecond)
		select {
		case <-program:
			t.Fatal("the program does not wait for the rank")
		case <-chatted:
			t.Fatal("the chat does not wait for the rank")
		default:
		}
		busy.FirstToken()
		synctest.Wait()
		select {
		case c := <-chatted:
			c.FirstToken()
			defer f.serve(c)
		default:
			t.Error("the chat does not go first")
		}
		time.Sleep(time.Second)
		c := <-program
		if c.Decision.Held < 2*time.Minute || c.Decision.Memory == nil || c.Decision.Waited < 2*time.Minute {
			t.Errorf("held %s, waited %s, memory %+v: want all of the wait", c.Decision.Held, c.Decision.Waited, c.Decision.Memory)
		}
		f.serve(c)
		f.serve(busy)
	})
}
