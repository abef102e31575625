package holdqueue_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
)

func weighted(t *testing.T, weights map[string]float64, change func(*holdqueue.Config)) (*holdqueue.Queue, *holdqueue.Line) {
	t.Helper()
	cfg := holdqueue.DefaultConfig()
	cfg.MaxWait = 0
	if change != nil {
		change(&cfg)
	}
	q := holdqueue.New(cfg, holdqueue.Params{Weight: func(tenant string) float64 { return weights[tenant] }})
	return q, q.NewLine()
}

// pop releases the one that goes next; nil when nobody waits.
func pop(l *holdqueue.Line, now time.Time) *holdqueue.Ticket {
	var out *holdqueue.Ticket
	l.Visit(now, 1, func(t *holdqueue.Ticket) holdqueue.Verdict { out = t; return holdqueue.Release })
	return out
}

// Item 9: two tenants of weights 1 and 3 flood the queue, a third sends now and then. Rooms open at the same moments
// with and without the two: what the third waits, it waits for a room.
func TestFloodingTenantsShareByWeightAndAThirdHardlyWaits(t *testing.T) {
	const hour = 3600.0
	run := func(flood bool) (tokens map[string]float64, p99 float64) {
		_, l := weighted(t, map[string]float64{"a": 1, "b": 3, "c": 1}, nil)
		dice, rooms, third := rand.New(rand.NewPCG(7, 8)), rand.New(rand.NewPCG(9, 9)), rand.New(rand.NewPCG(1, 9))
		tokens = map[string]float64{}
		at := func(s float64) time.Time { return epoch.Add(time.Duration(s * 1e9)) }
		fill := func(now float64, name string) { // it always has 200 requests in line
			work := 0.05 + dice.ExpFloat64()*0.4
			if name == "a" {
				work *= 3 // fewer and larger ones gain nothing
			}
			push(t, l, at(now), &holdqueue.Ticket{Tenant: name, Work: work, Cost: work * 1.5, Priority: dice.IntN(3), Owner: name})
		}
		if flood {
			for range 200 {
				fill(0, "a")
				fill(0, "b")
			}
		}
		var waits []float64
		arrives := 0.0
		for now := 0.0; now < hour; now += rooms.ExpFloat64() * 0.1 { // a room opens
			for arrives <= now {
				push(t, l, at(arrives), &holdqueue.Ticket{Tenant: "c", Work: 0.5, Owner: "c"})
				arrives += 2 + third.ExpFloat64()*10
			}
			out := pop(l, at(now))
			if out == nil {
				continue
			}
			if out.Tenant == "c" {
				waits = append(waits, now-out.Arrived().Sub(epoch).Seconds())
				continue
			}
			tokens[out.Tenant] += out.Cost
			fill(now, out.Tenant)
		}
		slices.Sort(waits)
		return tokens, waits[len(waits)*99/100]
	}
	_, alone := run(false)
	tokens, flooded := run(true)
	if ratio := tokens["b"] / tokens["a"] / 3; math.Abs(ratio-1) > 0.05 {
		t.Errorf("the shares are 1:%.3f, want 1:3 within 5 %%", 3*ratio)
	}
	if flooded > 1.2*alone {
		t.Errorf("p99 wait of the third is %.3f s, alone %.3f s: more than 1.2 times that", flooded, alone)
	}
	t.Logf("shares 1:%.3f; p99 wait of the third %.0f ms, alone %.0f ms (%.2f times)", tokens["b"]/tokens["a"], 1e3*flooded, 1e3*alone, flooded/alone)
}

func TestAnIdleTenantSavesNothingUp(t *testing.T) {
	_, l := weighted(t, map[string]float64{"a": 1, "b": 1}, nil)
	for range 400 {
		push(t, l, epoch, &holdqueue.Ticket{Tenant: "a", Work: 1})
	}
	for range 200 {
		pop(l, epoch)
	}
	for range 100 {
		push(t, l, epoch, &holdqueue.Ticket{Tenant: "b", Work: 1})
	}
	got := map[string]int{}
	for range 100 {
		got[pop(l, epoch).Tenant]++
	}
	if got["b"] < 50 || got["b"] > 51 {
		t.Errorf("b was idle for 200 releases and gets %d of the next 100, want half", got["b"])
	}
}

func TestWhatATenantHadBeyondItsShareCountsOnWhileOthersWait(t *testing.T) {
	_, l := weighted(t, nil, nil)
	for range 10 {
		push(t, l, epoch, &holdqueue.Ticket{Tenant: "b", Work: 1})
	}
	push(t, l, epoch, &holdqueue.Ticket{Tenant: "a", Work: 5})
	for pop(l, epoch).Tenant != "a" {
	}
	// a leaves and comes back: its five seconds are not forgotten, since b waits all the time.
	push(t, l, epoch, &holdqueue.Ticket{Tenant: "a", Work: 1})
	for i := range 4 {
		if who := pop(l, epoch).Tenant; who != "b" {
			t.Fatalf("release %d goes to %s, want b until it had five seconds too", i, who)
		}
	}
}

func TestAnEmptyShareGoesToTheOthers(t *testing.T) {
	_, l := weighted(t, map[string]float64{"a": 1, "b": 1000}, nil)
	for range 50 {
		push(t, l, epoch, &holdqueue.Ticket{Tenant: "a", Work: 1})
	}
	push(t, l, epoch, &holdqueue.Ticket{Tenant: "b", Work: 1})
	for i := range 51 {
		if pop(l, epoch) == nil {
			t.Fatalf("release %d: nobody goes although %d wait", i, l.Len())
		}
	}
}

func TestPriorityOrdersWithinATenantOnly(t *testing.T) {
	_, l := weighted(t, nil, nil)
	for range 10 {
		push(t, l, epoch, &holdqueue.Ticket{Tenant: "loud", Work: 1, Priority: 1000})
		push(t, l, epoch, &holdqueue.Ticket{Tenant: "quiet", Work: 1, Priority: -5})
	}
	got := map[string]int{}
	for range 10 {
		got[pop(l, epoch).Tenant]++
	}
	if got["loud"] != 5 || got["quiet"] != 5 {
		t.Errorf("ten releases went %v, want half each whatever one claims", got)
	}
}

func TestAFullQueueMakesRoomForWhoHasLess(t *testing.T) {
	q, l := weighted(t, map[string]float64{"a": 1, "b": 1}, func(c *holdqueue.Config) { c.MaxRequests, c.MaxBytes = 10, 1000 })
	for i := range 10 {
		push(t, l, epoch, &holdqueue.Ticket{Tenant: "a", Work: float64(1 + i), Bytes: 100, Owner: fmt.Sprint(i)})
	}
	if _, err := l.Push(&holdqueue.Ticket{Tenant: "a"}, epoch, 1, 0); !errors.Is(err, holdqueue.ErrFull) {
		t.Fatalf("the one who fills the queue gets %v, want %v", err, holdqueue.ErrFull)
	}
	for i := range 5 {
		push(t, l, epoch, &holdqueue.Ticket{Tenant: "b", Work: 1, Bytes: 100})
		out := l.Expired(epoch)
		if len(out) != 1 || !errors.Is(out[0].Why(), holdqueue.ErrShare) || out[0].Owner != fmt.Sprint(9-i) {
			t.Fatalf("push %d: out goes %v, want the last of a", i, out)
		}
	}
	if _, err := l.Push(&holdqueue.Ticket{Tenant: "b"}, epoch, 1, 0); !errors.Is(err, holdqueue.ErrFull) {
		t.Errorf("b with half of the queue gets %v, want %v", err, holdqueue.ErrFull)
	}
	if _, err := l.Push(&holdqueue.Ticket{Tenant: "c", Bytes: 500}, epoch, 1, 0); !errors.Is(err, holdqueue.ErrBytes) {
		t.Errorf("a newcomer who wants half of the bytes for one request gets %v, want %v", err, holdqueue.ErrBytes)
	}
	if q.Len() != l.Len() {
		t.Errorf("lengths %d and %d", q.Len(), l.Len())
	}
	l.Expired(epoch)
	for l.Len() > 0 {
		pop(l, epoch)
	}
	if q.Len() != 0 {
		t.Errorf("%d are counted in an empty queue", q.Len())
	}
}

// Who was pushed out is told so even when everybody else has left before the next look.
func TestWhoIsPushedOutOfALineThatEmptiesIsTold(t *testing.T) {
	_, l := weighted(t, nil, func(c *holdqueue.Config) { c.MaxRequests = 2 })
	rest := []*holdqueue.Ticket{push(t, l, epoch, &holdqueue.Ticket{Tenant: "a"})}
	last := push(t, l, epoch, &holdqueue.Ticket{Tenant: "a", Work: 1})
	rest = append(rest, push(t, l, epoch, &holdqueue.Ticket{Tenant: "b"}))
	for _, tk := range rest {
		l.Remove(tk)
	}
	if out := l.Expired(epoch); l.Len() != 0 || len(out) != 1 || out[0] != last {
		t.Errorf("%d wait, out goes %v", l.Len(), out)
	}
}

// The line against the simplest correct version: shares that are summed up and compared anew for each release.
func TestSharesAgreeWithAPlainSum(t *testing.T) {
	weights := map[string]float64{"a": 1, "b": 3, "c": 0.5, "d": 1}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		q, l := weighted(t, weights, nil)
		type plain struct {
			tag   float64
			queue []*holdqueue.Ticket
		}
		model := map[string]*plain{}
		clock := 0.0
		now := epoch
		names := []string{"a", "b", "c", "d"}
		for step := range 3000 {
			now = now.Add(time.Duration(r.IntN(100)) * time.Millisecond)
			waiting := 0
			for _, p := range model {
				waiting += len(p.queue)
			}
			if waiting == 0 {
				clock, model = 0, map[string]*plain{}
			}
			name := names[r.IntN(len(names))]
			switch op := r.IntN(10); {
			case op < 5:
				tk := push(t, l, now, &holdqueue.Ticket{Tenant: name, Work: r.Float64(), Priority: r.IntN(2)})
				p := model[name]
				if p == nil {
					p = &plain{}
					model[name] = p
				}
				if len(p.queue) == 0 {
					p.tag = max(p.tag, clock)
				}
				p.queue = append(p.queue, tk)
			case op < 6 && model[name] != nil && len(model[name].queue) > 0:
				p := model[name]
				i := r.IntN(len(p.queue))
				l.Remove(p.queue[i])
				p.queue = slices.Delete(p.queue, i, i+1)
			case waiting > 0:
				var want *plain
				for _, n := range names {
					if p := model[n]; p != nil && len(p.queue) > 0 && (want == nil || p.tag < want.tag) {
						want = p
					}
				}
				out := pop(l, now)
				i := slices.Index(want.queue, out)
				if i < 0 {
					t.Fatalf("seed %d, step %d: %s goes, whose turn it is not", seed, step, out.Tenant)
				}
				for _, o := range want.queue {
					if o.Priority > out.Priority {
						t.Fatalf("seed %d, step %d: a lower priority goes first", seed, step)
					}
				}
				want.queue = slices.Delete(want.queue, i, i+1)
				clock = max(clock, want.tag)
				want.tag += max(out.Work, 0.001) / weights[out.Tenant]
			}
			if q.Len() != l.Len() {
				t.Fatalf("seed %d, step %d: lengths %d and %d", seed, step, q.Len(), l.Len())
			}
		}
	}
}

func BenchmarkVisit(b *testing.B) {
	for _, tenants := range []int{1, 10, 1000} {
		b.Run(fmt.Sprintf("tenants=%d", tenants), func(b *testing.B) {
			q := holdqueue.New(holdqueue.DefaultConfig(), holdqueue.Params{})
			l := q.NewLine()
			add := func(i int) {
				if _, err := l.Push(&holdqueue.Ticket{Tenant: fmt.Sprint(i % tenants), Work: float64(i%97) / 10}, epoch, 16, 0); err != nil {
					b.Fatal(err)
				}
			}
			for i := range 10000 {
				add(i)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				l.Visit(epoch, 1, func(*holdqueue.Ticket) holdqueue.Verdict { return holdqueue.Release })
				i++
				add(i)
			}
		})
	}
}
