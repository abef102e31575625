package programs

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

const (
	horizon  = 30 * time.Second
	capacity = 100_000
)

// bed is a ledger over ranks of equal capacity, and its clock.
type bed struct {
	*Ledger
	t     testing.TB
	now   time.Duration
	ranks []Rank
}

func newBed(t testing.TB, ranks int) *bed {
	b := &bed{Ledger: New(NewRanks()), t: t}
	for i := range ranks {
		b.ranks = append(b.ranks, Rank{Slot: replica.Slot(i), Capacity: capacity, Pace: Pace{Bend: 50_000}})
	}
	return b
}

func call(name Name, tokens int) Call { return Call{Name: name, Tokens: tokens} }

// begin has a call arrive and be placed on the first rank that it is admitted to; nil when it waits.
func (b *bed) begin(c Call) *Place {
	b.t.Helper()
	b.Arrive(c, b.now, horizon)
	return b.retry(c)
}

// retry is begin for a call that waits.
func (b *bed) retry(c Call) *Place {
	b.t.Helper()
	for i := range b.ranks {
		b.ranks[i].Full = false
	}
	if b.Admit(c, false, b.ranks, b.now) == Waits {
		return nil
	}
	for _, r := range b.ranks {
		if !r.Full {
			return b.Place(c, r, b.now)
		}
	}
	b.t.Fatal("admitted to full ranks alone")
	return nil
}

// teach lets a session return after each gap, so that its class is known.
func (b *bed) teach(class string, gaps ...time.Duration) {
	b.t.Helper()
	c := Call{Name: 1 << 60, Class: class, Tokens: 10}
	for _, gap := range gaps {
		b.begin(c).End(10, false, false, b.now)
		b.now += gap
	}
	b.begin(c).End(10, true, false, b.now)
}

func seconds(n int, s float64) []time.Duration {
	list := make([]time.Duration, n)
	for i := range list {
		list[i] = time.Duration(s * float64(time.Second))
	}
	return list
}

func TestNewProgramsWaitUntilTheirContextFits(t *testing.T) {
	b := newBed(t, 1)
	b.teach("", seconds(8, 2)...)
	first := b.begin(call(1, 50_000))
	if first == nil {
		t.Fatal("a program waits before an empty rank")
	}
	if b.begin(call(2, 40_000)) != nil {
		t.Fatal("a program of 40,000 tokens is admitted beside one of 50,000 in 100,000")
	}
	if small := b.begin(call(3, 20_000)); small == nil {
		t.Error("a program of 20,000 tokens waits, want it admitted beside one of 50,000 in 100,000")
	}
	first.End(50_000, false, false, b.now)
	b.now += time.Second
	if b.retry(call(2, 40_000)) != nil {
		t.Fatal("a gap of a second has no claim")
	}
	b.now += 3 * horizon
	if b.retry(call(2, 40_000)) == nil {
		t.Error("a gap of many times the usual one still has its claim")
	}
}

// A place saves at most the computation of its context, once in each gap. A rank that computes its whole memory in two gaps or less has the time to
// do that for all contexts.
func TestSessionsWhoseContextsAreQuicklyComputedAreNoPrograms(t *testing.T) {
	for _, c := range []struct {
		name      string
		tokenTime float64
		waits     bool
	}{
		{"unknown speed", 0, true},
		{"100 s for the memory", 100.0 / capacity, true},
		{"12 s", 12.0 / capacity, true},
		{"8 s", 8.0 / capacity, false},
		{"1 s", 1.0 / capacity, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, 1)
			b.ranks[0].Pace.Token = c.tokenTime
			b.teach("", seconds(16, 5)...)
			b.begin(call(1, 50_000))
			if waits := b.begin(call(2, 60_000)) == nil; waits != c.waits {
				t.Errorf("a session with gaps of 5 s waits for memory: %v, want %v", waits, c.waits)
			}
		})
	}
}

func TestFinalCallsFreeTheirMemory(t *testing.T) {
	b := newBed(t, 1)
	b.teach("", seconds(8, 2)...)
	first := b.begin(call(1, 70_000))
	if b.begin(call(2, 40_000)) != nil {
		t.Fatal("admitted to a full rank")
	}
	first.End(70_000, true, false, b.now)
	if b.retry(call(2, 40_000)) == nil {
		t.Error("the program waits for one that is not going to return")
	}
}

func TestProgramsWithAPlaceKeepIt(t *testing.T) {
	b := newBed(t, 1)
	b.teach("", seconds(8, 2)...)
	for name := Name(1); name <= 2; name++ {
		b.begin(call(name, 40_000)).End(40_000, false, false, b.now)
	}
	b.now += time.Second
	for name := Name(1); name <= 2; name++ {
		if b.begin(call(name, 45_000)) == nil {
			t.Errorf("program %d waits at its second call", name)
		}
	}
}

// A chat is no program: it never waits, and its context has no claim that holds programs back.
func TestChatsNeverWait(t *testing.T) {
	b := newBed(t, 1)
	b.teach("agents", seconds(8, 2)...)
	b.teach("chats", seconds(8, 300)...)
	full := b.begin(Call{Name: 1, Class: "agents", Tokens: 80_000})
	for name := Name(10); name < 20; name++ {
		place := b.begin(Call{Name: name, Class: "chats", Tokens: 9000})
		if place == nil {
			t.Fatal("a chat waits for memory")
		}
		place.End(9000, false, false, b.now)
	}
	full.End(80_000, true, false, b.now)
	if b.begin(Call{Name: 2, Class: "agents", Tokens: 70_000}) == nil {
		t.Error("a program waits for chats between their calls")
	}
}

// The first sessions of a class are not held: nothing says that they are programs.
func TestUnknownClassesDoNotWait(t *testing.T) {
	b := newBed(t, 1)
	for name := Name(1); name <= 3; name++ {
		if b.begin(call(name, 60_000)) == nil {
			t.Fatalf("session %d waits though nothing is known of its class", name)
		}
	}
}

func TestPressurePausesTheCheapestGap(t *testing.T) {
	b := newBed(t, 1)
	b.teach("", seconds(8, 2)...)
	sizes := map[Name]int{1: 40_000, 2: 15_000, 3: 20_000}
	places := map[Name]*Place{}
	for name := Name(1); name <= 3; name++ {
		if places[name] = b.begin(call(name, sizes[name])); places[name] == nil {
			t.Fatalf("program %d waits", name)
		}
	}
	places[2].End(15_000, false, false, b.now)
	places[3].End(20_000, false, false, b.now)
	if n := b.Stats(false, b.now).Taken; n != 0 {
		t.Fatalf("%d programs are paused before there is pressure", n)
	}
	places[1].End(40_000, false, false, b.now)
	b.now += time.Second
	if b.begin(call(1, 75_000)) == nil { // it has grown: 110,000 of 100,000
		t.Error("a program waits at its second call")
	}
	if n := b.Stats(false, b.now).Taken; n != 1 {
		t.Fatalf("%d programs are paused, want one", n)
	}
	if b.begin(call(3, 20_000)) == nil {
		t.Error("the program whose context is the dearest to compute has lost its place")
	}
	if b.begin(call(2, 70_000)) != nil {
		t.Error("the program whose context is the cheapest to compute kept its place")
	}
}

// A program that lost its place a moment ago returns to the rank that still holds its context, though a new one does not fit there: elsewhere
// all of it would be computed again.
func TestAPausedProgramReturnsWhereItsContextStillIs(t *testing.T) {
	for _, tt := range []struct {
		name        string
		held, loads float64
		want        Verdict
	}{
		{"held", 29_000, 0, Fits},
		{"in host memory", 0, 29_000, Fits},
		{"its end in host memory", 15_000, 14_000, Fits},
		{"gone", 5_000, 0, Waits},
		{"gone but for its middle", 5_000, 10_000, Waits},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t, 1)
			b.teach("", seconds(8, 2)...)
			one, two := b.begin(call(1, 50_000)), b.begin(call(2, 30_000))
			two.End(30_000, false, false, b.now)
			one.End(50_000, false, false, b.now)
			one = b.begin(call(1, 75_000)) // 105,000 of 100,000
			if b.Stats(false, b.now).Paused != 1 {
				t.Fatal("no program lost its place")
			}
			one.End(60_000, false, false, b.now) // it was cut off: there is room up to nine tenths
			next := call(2, 31_000)
			b.Arrive(next, b.now, horizon)
			b.ranks[0].Held, b.ranks[0].Loads = tt.held, tt.loads
			if got := b.Admit(next, false, b.ranks, b.now); got != tt.want {
				t.Errorf("Admit = %d, want %d", got, tt.want)
			}
		})
	}
}

func TestTheRequestsInFlightCount(t *testing.T) {
	b := newBed(t, 2)
	b.teach("", seconds(8, 2)...)
	b.begin(call(1, 10_000))
	b.ranks[0].Booked, b.ranks[1].Booked = 70_000, 70_000 // 60,000 of the first belong to no session
	b.Arrive(call(2, 20_000), b.now, horizon)
	if got := b.Admit(call(2, 20_000), false, b.ranks, b.now); got != Fits {
		t.Fatalf("Admit = %d, want it to fit: the second rank has no program, so waiting is of no use", got)
	}
	if !b.ranks[0].Full || b.ranks[1].Full {
		t.Errorf("full: %v and %v, want the first rank alone", b.ranks[0].Full, b.ranks[1].Full)
	}
}

// What a rank held before a session began belongs to others.
func TestSharedBeginningsCountOnce(t *testing.T) {
	b := newBed(t, 1)
	b.teach("", seconds(8, 2)...)
	b.ranks[0].Held = 20_000
	for name := Name(1); name <= 4; name++ {
		if b.begin(call(name, 40_000)) == nil {
			t.Fatalf("program %d waits, want four of 20,000 tokens of their own", name)
		}
	}
	if b.begin(call(5, 40_000)) != nil {
		t.Error("a fifth is admitted")
	}
}

func TestLeavingGivesThePlaceBack(t *testing.T) {
	b := newBed(t, 1)
	b.teach("", seconds(8, 2)...)
	b.Arrive(call(1, 70_000), b.now, horizon)
	if b.Admit(call(1, 70_000), false, b.ranks, b.now) != Fits {
		t.Fatal("the rank is empty")
	}
	if b.begin(call(2, 70_000)) != nil {
		t.Fatal("a program that is admitted and not placed has no claim")
	}
	b.Leave(1)
	if b.retry(call(2, 70_000)) == nil {
		t.Error("the caller that left still has its place")
	}
}

func TestARankThatGoesTakesItsPlacesAlong(t *testing.T) {
	b := newBed(t, 2)
	b.teach("", seconds(8, 2)...)
	place := b.begin(call(1, 70_000))
	b.Ledger.ranks.Remove(0)
	place.End(70_000, false, false, b.now)
	if n := b.Stats(false, b.now).Placed; n != 0 {
		t.Errorf("%d programs have a place on a rank that is gone", n)
	}
}

// Whatever happens, the sums are those of the sessions, and nothing is left of sessions that are long gone.
func TestSumsAreKept(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			dice := rand.New(rand.NewPCG(seed, 1))
			b := newBed(t, 3)
			type open struct {
				call  Call
				place *Place
			}
			var waiting, running []open
			for range 3000 {
				b.now += time.Duration(dice.ExpFloat64() * float64(time.Second))
				c := Call{Name: Name(1 + dice.IntN(40)), Class: fmt.Sprint(dice.IntN(2)), Tokens: 1 + dice.IntN(60_000), Retry: dice.IntN(10) == 0}
				for i := range b.ranks {
					b.ranks[i].Held, b.ranks[i].Booked = float64(dice.IntN(10_000)), float64(dice.IntN(50_000))
				}
				switch dice.IntN(5) {
				case 0, 1:
					if p := b.begin(c); p != nil {
						running = append(running, open{c, p})
					} else {
						waiting = append(waiting, open{call: c})
					}
				case 2:
					if len(waiting) > 0 {
						w := waiting[0]
						if w.place = b.retry(w.call); w.place != nil {
							running, waiting = append(running, w), waiting[1:]
						} else if dice.IntN(3) == 0 {
							b.Leave(w.call.Name)
							waiting = waiting[1:]
						}
					}
				default:
					if len(running) > 0 {
						i := dice.IntN(len(running))
						running[i].place.End(dice.IntN(80_000), dice.IntN(8) == 0, dice.IntN(20) == 0, b.now)
						running[i] = running[len(running)-1]
						running = running[:len(running)-1]
					}
				}
				if dice.IntN(200) == 0 {
					b.Ledger.ranks.Remove(replica.Slot(dice.IntN(3)))
				}
				b.consistent(len(waiting), len(running))
			}
			for _, w := range waiting {
				b.Leave(w.call.Name)
			}
			for _, r := range running {
				r.place.End(1000, false, false, b.now)
			}
			for range 3 {
				b.now += time.Hour
				b.Arrive(call(1<<50, 1), b.now, horizon)
				b.Leave(1 << 50)
			}
			if n := len(b.programs); n != 0 {
				t.Errorf("%d sessions are remembered hours after their last call", n)
			}
		})
	}
}

func (b *bed) consistent(waiting, running int) {
	b.t.Helper()
	for slot, a := range b.Ledger.ranks.accounts {
		whole := 0.0
		for i, p := range a.programs {
			whole += p.own()
			if p.account != a || p.index != i {
				b.t.Fatalf("rank %d lists a session of another place", slot)
			}
		}
		if math.Abs(whole-a.whole) > 1e-3 {
			b.t.Fatalf("rank %d sums up %v tokens, its sessions have %v", slot, a.whole, whole)
		}
	}
	for _, p := range b.programs {
		waiting -= p.waiting
		running -= p.running
	}
	if waiting != 0 || running > 0 { // a session that ended for good takes no running call along
		b.t.Fatalf("%d waiting and %d running calls are in no session", waiting, running)
	}
}

// A few quick returns do not make a program of a chat, as many as an agent's do.
func TestASessionDiffersFromItsClass(t *testing.T) {
	b := newBed(t, 1)
	b.teach("", seconds(12, 300)...)
	b.teach("agents", seconds(8, 2)...)
	full := b.begin(Call{Name: 1, Class: "agents", Tokens: 80_000})
	if full == nil {
		t.Fatal("a program waits before an empty rank")
	}
	turn := func(tokens int) bool {
		place := b.begin(call(2, tokens))
		if place == nil {
			return false
		}
		place.End(tokens, false, false, b.now)
		b.now += 2 * time.Second
		return true
	}
	for n := range 3 {
		if !turn(1000) {
			t.Fatalf("a session of chats waits at call %d", n+1)
		}
	}
	for range 8 {
		turn(1000)
	}
	if n := b.Stats(false, b.now).Placed; n != 2 {
		t.Errorf("%d programs, want the agent and the session that returned as quickly as one", n)
	}
}

// Gaps of half a second or of minutes: after ten seconds a session returns as likely as the long ones say.
func TestLongToolsAreNotForgotten(t *testing.T) {
	b := newBed(t, 1)
	var list []time.Duration
	for range 12 {
		list = append(list, append(seconds(6, 0.5), seconds(1, 180)...)...)
	}
	b.teach("", list...)
	first := b.begin(call(1, 60_000))
	first.End(60_000, false, false, b.now)
	p := b.programs[1]
	b.now += 15 * time.Second
	if c := p.chance(b.now); c < 0.3 {
		t.Errorf("after 15 s the chance of a return is %.2f, want it to count the gaps of three minutes", c)
	}
	b.now += 20 * time.Minute
	if c := p.chance(b.now); c > leastChance {
		t.Errorf("after 20 minutes the chance is %.2f, want none", c)
	}
}

func TestParentsKeepTheirPlaceWhileChildrenWork(t *testing.T) {
	b := newBed(t, 1)
	b.teach("", seconds(8, 2)...)
	b.begin(call(1, 30_000)).End(30_000, false, false, b.now)
	child := Call{Name: 2, Parent: 1, Tokens: 20_000}
	working := b.begin(child)
	if working == nil || !b.Awaited(2) || b.Awaited(1) {
		t.Fatal("the child does not begin, or is not known as one")
	}
	b.now += 20 * horizon
	if c := b.programs[1].chance(b.now); c < 0.8 {
		t.Errorf("the parent's chance is %.2f while its child works", c)
	}
	working.End(20_000, true, false, b.now)
	if c := b.programs[1].chance(b.now); c > 0.1 {
		t.Errorf("the parent's chance is %.2f after its child has ended, want that of its own gap", c)
	}
	if n := len(b.programs[1].children); n != 0 {
		t.Errorf("the parent still has %d children", n)
	}
}

// While a program that has begun waits, a new one of its tenant begins only where much of the memory is free.
func TestNewProgramsPassOnlyWhereMuchIsFree(t *testing.T) {
	b := newBed(t, 1)
	b.teach("", seconds(8, 2)...)
	if b.begin(call(1, 45_000)) == nil {
		t.Fatal("a program waits before an empty rank")
	}
	c := call(2, 20_000)
	c.Passes = true
	if b.begin(c) != nil {
		t.Error("a new program passes one that has begun up to 65 % of the memory")
	}
	c.Passes = false
	if b.retry(c) == nil {
		t.Error("a new program that passes none waits below 70 % of the memory")
	}
	small := call(3, 10_000)
	small.Passes = true
	b.Leave(2)
	b = newBed(t, 1)
	b.teach("", seconds(8, 2)...)
	b.begin(call(1, 45_000))
	if b.begin(small) == nil {
		t.Error("a new program waits below 60 % of the memory")
	}
}

// The cheapest program of a rank that fills up moves at its next call to a rank that has much more to spare, and to no other one.
func TestTheCheapestProgramMovesFromAFullRank(t *testing.T) {
	for _, tt := range []struct {
		name          string
		small, others int // contexts on the first rank
		second        int // in use on the second one
		behind        bool
		want          replica.Slot
	}{
		{"moves", 20_000, 70_000, 30_000, false, 1},
		{"not full", 20_000, 55_000, 10_000, false, 0},
		{"not the cheapest", 60_000, 30_000, 0, false, 0},
		{"no better elsewhere", 20_000, 70_000, 50_000, false, 0},
		{"others wait", 20_000, 70_000, 30_000, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t, 2)
			b.teach("", seconds(8, 2)...)
			at := func(name Name, tokens int, rank replica.Slot) *Place {
				b.Arrive(call(name, tokens), b.now, horizon)
				return b.Place(call(name, tokens), b.ranks[rank], b.now)
			}
			at(1, tt.others, 0)
			if tt.second > 0 {
				at(2, tt.second, 1)
			}
			at(3, tt.small, 0).End(tt.small, false, false, b.now)
			b.now += time.Second
			c := call(3, tt.small+1000)
			b.Arrive(c, b.now, horizon)
			got := replica.Slot(0)
			if b.Admit(c, tt.behind, b.ranks, b.now) == Fits {
				if got = 1; !b.ranks[0].Full || b.ranks[1].Full {
					t.Errorf("full: %t and %t, want the rank that it leaves alone", b.ranks[0].Full, b.ranks[1].Full)
				}
			} else if b.ranks[0].Full || b.ranks[1].Full {
				t.Error("a rank is full for a program that stays")
			}
			if got != tt.want {
				t.Fatalf("the program is admitted to rank %d, want %d", got, tt.want)
			}
			b.Place(c, b.ranks[got], b.now).End(tt.small+1000, false, false, b.now)
			if got := b.programs[3].account; got == nil || got.slot != tt.want {
				t.Errorf("it has its place on %+v, want rank %d", got, tt.want)
			}
			if n := b.Stats(false, b.now); n.Taken != 0 || n.Paused != 0 {
				t.Errorf("%+v: a move is no pause", n)
			}
		})
	}
}

func TestBegunIsTheContextOfASessionAfterACall(t *testing.T) {
	b := newBed(t, 1)
	first := b.begin(call(1, 30_000))
	if n := b.Begun(1); n != 0 {
		t.Errorf("%d before the end of the first call, want 0", n)
	}
	first.End(31_000, false, false, b.now)
	if n := b.Begun(1); n != 31_000 {
		t.Errorf("%d after the first call, want its context of 31,000", n)
	}
	b.begin(call(1, 33_000)).End(33_500, true, false, b.now)
	if n := b.Begun(1); n != 0 {
		t.Errorf("%d after the last call, want 0", n)
	}
	if n := b.Begun(9); n != 0 {
		t.Errorf("%d of a session that never was, want 0", n)
	}
}

// What another ledger has placed counts here, whatever the memory.
func TestAdoptedCallsHaveAPlace(t *testing.T) {
	b := newBed(t, 1)
	b.teach("", seconds(8, 2)...)
	b.begin(call(1, 70_000)).End(70_000, true, false, b.now) // the rank's memory is known
	adopted := b.Adopt(call(7, 90_000), b.ranks[0], b.now, horizon)
	if b.begin(call(8, 30_000)) != nil {
		t.Error("a program begins where an adopted one fills the memory")
	}
	adopted.End(90_000, true, false, b.now)
	if b.retry(call(8, 30_000)) == nil {
		t.Error("the program waits after the end of the adopted one")
	}
}

// Two models on one rank: what one claims is not free for the other, and the cheapest place is taken away, whosever it is.
func TestLedgersShareTheMemoryOfRanks(t *testing.T) {
	b := newBed(t, 1)
	b.teach("", seconds(8, 2)...)
	other := &bed{Ledger: New(b.Ledger.ranks), t: t, now: b.now, ranks: b.ranks}
	other.teach("", seconds(8, 2)...)
	b.now = other.now
	small := b.begin(call(1, 30_000))
	small.End(30_000, false, false, b.now)
	if other.begin(call(2, 60_000)) != nil {
		t.Fatal("a program of another model is admitted to a rank that is full")
	}
	large := other.begin(call(3, 40_000)) // it fits next to 30,000
	if large == nil {
		t.Fatal("a program of another model waits where it fits")
	}
	large.End(95_000, false, false, b.now) // it has outgrown what is left
	if one, two := b.Stats(false, b.now), other.Stats(false, b.now); one.Taken != 1 || one.Paused != 1 || two.Taken != 0 || two.Placed != 1 {
		t.Errorf("the counts are %+v and %+v, want the place of the smaller context taken away", one, two)
	}
	b.Ledger.ranks.Remove(0)
	if two := other.Stats(false, b.now); two.Placed != 0 {
		t.Errorf("%d programs have a place on a rank that is gone", two.Placed)
	}
}
