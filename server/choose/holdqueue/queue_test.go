package holdqueue_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
)

var epoch = time.Unix(1000, 0)

func newLine(t *testing.T, change func(*holdqueue.Config)) (*holdqueue.Queue, *holdqueue.Line) {
	t.Helper()
	cfg := holdqueue.DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	q := holdqueue.New(cfg, holdqueue.Params{})
	return q, q.NewLine()
}

func push(t *testing.T, l *holdqueue.Line, at time.Time, tk *holdqueue.Ticket) *holdqueue.Ticket {
	t.Helper()
	if wait, err := l.Push(tk, at, 1, 0); err != nil {
		t.Fatalf("Push(%v) = %v, %v", tk.Owner, wait, err)
	}
	return tk
}

// order is the owners' names in the order in which they are offered.
func order(l *holdqueue.Line, now time.Time) string {
	var names []string
	l.Visit(now, 1000, func(t *holdqueue.Ticket) holdqueue.Verdict {
		names = append(names, t.Owner.(string))
		return holdqueue.Keep
	})
	return strings.Join(names, " ")
}

func TestCheapestFirstWithAgeing(t *testing.T) {
	_, l := newLine(t, nil)
	push(t, l, epoch, &holdqueue.Ticket{Owner: "dear", Work: 3})
	push(t, l, epoch, &holdqueue.Ticket{Owner: "cheap", Work: 0.1})
	push(t, l, epoch.Add(10*time.Second), &holdqueue.Ticket{Owner: "middle", Work: 1})
	push(t, l, epoch.Add(40*time.Second), &holdqueue.Ticket{Owner: "late", Work: 0.1})
	if got, want := order(l, epoch.Add(41*time.Second)), "cheap middle dear late"; got != want {
		t.Errorf("order %q, want %q: thirty seconds of waiting make up for three of work", got, want)
	}
}

// Seniority counts as an earlier arrival in the order of a tenant's tickets, and not for deadlines.
func TestSeniorityCountsAsAnEarlierArrival(t *testing.T) {
	_, l := newLine(t, func(c *holdqueue.Config) { c.MaxWait = time.Minute })
	push(t, l, epoch, &holdqueue.Ticket{Owner: "first"})
	push(t, l, epoch.Add(10*time.Second), &holdqueue.Ticket{Owner: "second"})
	senior := push(t, l, epoch.Add(20*time.Second), &holdqueue.Ticket{Owner: "senior", Seniority: 15 * time.Second})
	push(t, l, epoch.Add(20*time.Second), &holdqueue.Ticket{Owner: "oldest", Seniority: time.Hour})
	push(t, l, epoch, &holdqueue.Ticket{Owner: "urgent", Priority: 1})
	if got, want := order(l, epoch.Add(21*time.Second)), "urgent oldest first senior second"; got != want {
		t.Errorf("order %q, want %q", got, want)
	}
	if want := epoch.Add(80 * time.Second); !senior.Deadline.Equal(want) {
		t.Errorf("the deadline is %s, want a minute after the arrival, %s", senior.Deadline, want)
	}
}

func TestPriorityComesFirst(t *testing.T) {
	_, l := newLine(t, nil)
	push(t, l, epoch, &holdqueue.Ticket{Owner: "cheap", Work: 0.1})
	push(t, l, epoch, &holdqueue.Ticket{Owner: "urgent", Work: 9, Priority: 1})
	push(t, l, epoch, &holdqueue.Ticket{Owner: "idle", Work: 0.1, Priority: -1})
	if got, want := order(l, epoch), "urgent cheap idle"; got != want {
		t.Errorf("order %q, want %q", got, want)
	}
}

func TestTenantsShareFairly(t *testing.T) {
	_, l := newLine(t, nil)
	for range 50 {
		push(t, l, epoch, &holdqueue.Ticket{Owner: "many", Tenant: "many", Work: 1})
	}
	for range 5 {
		push(t, l, epoch, &holdqueue.Ticket{Owner: "few", Tenant: "few", Work: 1.5})
	}
	share := map[string]int{}
	for i := range 10 {
		l.Visit(epoch.Add(time.Duration(i)*time.Millisecond), 1, func(t *holdqueue.Ticket) holdqueue.Verdict {
			share[t.Owner.(string)]++
			return holdqueue.Release
		})
	}
	if share["few"] < 3 || share["many"] < 4 {
		t.Errorf("ten releases went %v: both tenants must have a share", share)
	}
}

func TestNobodyStarves(t *testing.T) {
	_, l := newLine(t, nil)
	push(t, l, epoch, &holdqueue.Ticket{Owner: "dear", Work: 5})
	for i := 1; i <= 100; i++ {
		now := epoch.Add(time.Duration(i) * time.Second)
		push(t, l, now, &holdqueue.Ticket{Owner: "cheap", Work: 0.01})
		out := ""
		l.Visit(now, 1, func(t *holdqueue.Ticket) holdqueue.Verdict { out = t.Owner.(string); return holdqueue.Release })
		if out == "dear" {
			if i < 45 || i > 55 {
				t.Errorf("five seconds of work went after %d s, want about 50", i)
			}
			return
		}
	}
	t.Error("the dear request never went")
}

func TestRefusals(t *testing.T) {
	q, l := newLine(t, func(c *holdqueue.Config) { c.MaxRequests, c.MaxBytes = 3, 100 })
	push(t, l, epoch, &holdqueue.Ticket{Owner: "a", Work: 2, Bytes: 60})
	if _, err := l.Push(&holdqueue.Ticket{Work: 1, Bytes: 41}, epoch, 1, 0); !errors.Is(err, holdqueue.ErrBytes) {
		t.Errorf("too many bytes: %v", err)
	}
	// Before it there are 2 s of work on one rank that has room in 1 s; it brings 3 s itself.
	late := &holdqueue.Ticket{Work: 3, Deadline: epoch.Add(5900 * time.Millisecond)}
	if wait, err := l.Push(late, epoch, 1, time.Second); !errors.Is(err, holdqueue.ErrDeadline) || wait != 3*time.Second {
		t.Errorf("a deadline that cannot be met: %v, retry after %v, want 3s", err, wait)
	}
	late.Deadline = epoch.Add(6100 * time.Millisecond)
	push(t, l, epoch, late)
	push(t, l, epoch, &holdqueue.Ticket{Owner: "c"})
	if _, err := l.Push(&holdqueue.Ticket{}, epoch, 1, 0); !errors.Is(err, holdqueue.ErrFull) {
		t.Errorf("too many requests: %v", err)
	}
	if q.Len() != 3 || l.Len() != 3 {
		t.Errorf("lengths %d and %d, want 3: what is refused does not count", q.Len(), l.Len())
	}
	if gone := l.Expired(epoch.Add(7 * time.Second)); len(gone) != 1 || gone[0] != late {
		t.Errorf("%d expired, want the one with a deadline", len(gone))
	}
	if n := len(l.Drain()); n != 2 || q.Len() != 0 {
		t.Errorf("drained %d, left %d, want 2 and 0", n, q.Len())
	}
}

func TestMaxWaitEndsTheWait(t *testing.T) {
	_, l := newLine(t, func(c *holdqueue.Config) { c.MaxWait = time.Minute })
	push(t, l, epoch, &holdqueue.Ticket{Owner: "a"})
	if n := len(l.Expired(epoch.Add(59 * time.Second))); n != 0 {
		t.Errorf("%d expired early", n)
	}
	if n := len(l.Expired(epoch.Add(61 * time.Second))); n != 1 {
		t.Errorf("%d expired, want 1", n)
	}
}

// The queue against the simplest correct version: a list that is sorted anew for each visit.
func TestQueueAgreesWithASortedList(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	q, l := newLine(t, func(c *holdqueue.Config) { c.MaxWait = 0 })
	var list []*holdqueue.Ticket
	now := epoch
	key := func(t *holdqueue.Ticket) float64 { return t.Work + 0.1*t.Arrived().Sub(epoch).Seconds() }
	for step := range 5000 {
		now = now.Add(time.Duration(r.IntN(1000)) * time.Millisecond)
		switch op := r.IntN(10); {
		case op < 5:
			list = append(list, push(t, l, now, &holdqueue.Ticket{Work: r.Float64() * 5, Priority: r.IntN(3), Bytes: r.IntN(100), Owner: step}))
		case op < 7 && len(list) > 0:
			i := r.IntN(len(list))
			if !l.Remove(list[i]) || l.Remove(list[i]) {
				t.Fatalf("step %d: Remove must take a ticket out exactly once", step)
			}
			list = slices.Delete(list, i, i+1)
		default:
			slices.SortFunc(list, func(a, b *holdqueue.Ticket) int {
				switch {
				case a.Priority != b.Priority:
					return b.Priority - a.Priority
				case key(a) < key(b):
					return -1
				case key(a) > key(b):
					return 1
				}
				return 0
			})
			most, i := 1+r.IntN(5), 0
			var kept []*holdqueue.Ticket
			l.Visit(now, most, func(tk *holdqueue.Ticket) holdqueue.Verdict {
				if tk != list[i] {
					t.Fatalf("step %d: offered %v at place %d, want %v", step, tk.Owner, i, list[i].Owner)
				}
				i++
				switch r.IntN(3) {
				case 0:
					return holdqueue.Release
				case 1:
					tk.Work = r.Float64() * 5
				}
				kept = append(kept, tk)
				return holdqueue.Keep
			})
			list = append(kept, list[i:]...)
		}
		if q.Len() != len(list) || l.Len() != len(list) {
			t.Fatalf("step %d: lengths %d and %d, want %d", step, q.Len(), l.Len(), len(list))
		}
	}
}

func BenchmarkEmptyQueue(b *testing.B) {
	q := holdqueue.New(holdqueue.DefaultConfig(), holdqueue.Params{})
	for b.Loop() {
		if q.Len() != 0 {
			b.Fatal("not empty")
		}
	}
}
