package speed

import (
	"math"
	"testing"
	"time"
)

// What is finished before the engine runs out of work is one sample, from the first booking to the last first token.
func TestAnAccountMakesOneSampleOfABusyTime(t *testing.T) {
	at := time.Unix(100, 0)
	a := account{budget: 1000}
	var first, second Entry
	a.book(&first, Work{Tokens: 400, Context: 100}, at, Decodes{})
	a.book(&second, Work{Tokens: 600, Certainty: Estimated}, at.Add(10*time.Millisecond), Decodes{})
	if _, ok := a.served(&first, at.Add(50*time.Millisecond), Decodes{}); ok || first.pending {
		t.Fatalf("a sample ended while work was left, or the entry is open: %t", first.pending)
	}
	p, ok := a.served(&second, at.Add(90*time.Millisecond), Decodes{Sequences: 1})
	want := sample{tokens: 1000, bent: 400*300 + 600*300, starts: 1, steps: 1, decode: Decodes{Sequences: 1}, doubt: .6, seconds: .09}
	if !ok || p.sample != want || !p.from.Equal(at) || !p.to.Equal(at.Add(90*time.Millisecond)) {
		t.Errorf("%+v, want %+v", p, want)
	}
	if a.first != nil || a.last != nil || a.pending != (work{}) {
		t.Errorf("work is left: %+v", a.pending)
	}
}

// A sample with enough work ends at the last first token of a step, and the next one begins there.
func TestAFullSampleEndsWithItsStep(t *testing.T) {
	at := time.Unix(100, 0)
	a := account{budget: 100}
	var one, other Entry
	a.book(&one, Work{Tokens: pieces * 100}, at, Decodes{})
	a.book(&other, Work{Tokens: 50}, at, Decodes{})
	a.served(&one, at.Add(time.Second), Decodes{})
	if _, ok := a.full(at.Add(time.Second + together)); ok {
		t.Error("a first token of the same step ended the sample")
	}
	p, ok := a.full(at.Add(2 * time.Second))
	if !ok || p.tokens != pieces*100 || p.seconds != 1 || !a.since.Equal(at.Add(time.Second)) || a.running != (sample{}) {
		t.Errorf("%+v, then from %v %+v", p, a.since, a.running)
	}
}

// The time in which an engine computed something unknown makes no sample, and none of what was booked then.
func TestVoidWorkMakesNoSample(t *testing.T) {
	at := time.Unix(100, 0)
	a := account{budget: 100}
	var e Entry
	a.book(&e, Work{Tokens: 500}, at, Decodes{})
	a.void(at.Add(time.Second))
	if p, ok := a.served(&e, at.Add(2*time.Second), Decodes{}); ok {
		t.Errorf("a sample: %+v", p)
	}
}

// While an engine loads a prompt from host memory it is idle, unless it computes others: the sample of these begins when they come.
func TestALoadKeepsNoEngineBusy(t *testing.T) {
	at := time.Unix(100, 0)
	for _, tt := range []struct {
		name  string
		first time.Duration // when the prompt that loads has its first token; 0: it leaves
	}{{"longer than the other's prefill", 30 * time.Second}, {"and it leaves", 0}} {
		a := account{budget: 1000}
		var loads, other Entry
		a.book(&loads, Work{Tokens: 500, Certainty: Loading}, at, Decodes{})
		a.book(&other, Work{Tokens: 1000}, at.Add(10*time.Second), Decodes{})
		a.correct(&loads, 700, 0)
		if late := a.late(at.Add(10*time.Second), &Model{Token: 1e-4}); late != 0 {
			t.Errorf("%s: late by %v as soon as it is booked", tt.name, late)
		}
		if tt.first == 0 {
			a.unlist(&loads)
		}
		p, ok := a.served(&other, at.Add(10500*time.Millisecond), Decodes{})
		if !ok || p.seconds != 0.5 || p.tokens != 1000 {
			t.Errorf("%s: %+v, want 1000 tokens in half a second", tt.name, p)
		}
		if tt.first > 0 {
			if p, ok := a.served(&loads, at.Add(tt.first), Decodes{}); ok {
				t.Errorf("%s: the load made a sample: %+v", tt.name, p)
			}
		}
		if a.first != nil || a.pending != (work{}) || loads.pending {
			t.Errorf("%s: work is left: %+v", tt.name, a.pending)
		}
	}
}

// What a prompt that was loaded takes of an engine's time is not known: prompts that were computed at the same time make no sample.
func TestALoadedPromptVoidsTheOthersOfItsTime(t *testing.T) {
	at := time.Unix(100, 0)
	a := account{budget: 1000}
	var loads, other Entry
	a.book(&loads, Work{Tokens: 500, Certainty: Loading}, at, Decodes{})
	a.book(&other, Work{Tokens: 1000}, at, Decodes{})
	a.served(&loads, at.Add(time.Second), Decodes{})
	if p, ok := a.served(&other, at.Add(2*time.Second), Decodes{}); ok {
		t.Errorf("a sample: %+v", p)
	}
}

// Open work is late from a second on, unless a first token of it may have been missed.
func TestOpenWorkIsLate(t *testing.T) {
	at, m := time.Unix(100, 0), prior()
	for name, test := range map[string]struct {
		work  Work
		after time.Duration
		late  bool
	}{
		"soon":   {Work{Tokens: 8000}, 900 * time.Millisecond, false},
		"late":   {Work{Tokens: 8000}, 10 * time.Second, true},
		"silent": {Work{Tokens: 8000, Silent: true}, 10 * time.Second, false},
	} {
		a := account{budget: defaultBudget}
		var e Entry
		a.book(&e, test.work, at, Decodes{})
		got := a.late(at.Add(test.after), &m)
		if test.late != (got > 5) || !test.late && got != 0 {
			t.Errorf("%s: late by %v", name, got)
		}
	}
	if got := (&account{budget: 1}).late(at, &m); got != 0 || math.IsNaN(got) {
		t.Errorf("without work it is late by %v", got)
	}
}
