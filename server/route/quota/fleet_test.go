package quota_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/peers/grants"
	"github.com/kvpilot/kvpilot/server/route/quota"
)

// flood sends requests of a tenant to all routers, more than it may, for a time. It counts the admitted requests and their tokens.
type flood struct {
	tenant   string
	every    time.Duration // between requests, at each router
	tokens   func() int    // of a request: booked, and used
	life     time.Duration
	mu       sync.Mutex
	requests int // guarded by mu
	used     int // guarded by mu
	flying   int // guarded by mu
	most     int // guarded by mu
}

func (f *flood) run(n *net, d time.Duration, all *sync.WaitGroup) {
	end := time.Now().Add(d)
	for at := time.Now(); at.Before(end); at = at.Add(f.every) {
		time.Sleep(time.Until(at))
		for _, r := range n.list() {
			all.Go(func() { f.one(r) })
		}
	}
}

func (f *flood) one(r *node) {
	g := &quota.Grant{}
	if r.limiter.Admit(g, f.tenant) != nil {
		return
	}
	booked, used := f.tokens(), f.tokens()
	if r.limiter.Book(g, quota.Ask{Prompt: booked}) != nil {
		r.limiter.Settle(g, quota.Usage{})
		return
	}
	f.mu.Lock()
	f.requests++
	f.used += used
	f.flying++
	f.most = max(f.most, f.flying)
	f.mu.Unlock()
	time.Sleep(f.life)
	f.mu.Lock()
	f.flying--
	f.mu.Unlock()
	r.limiter.Settle(g, quota.Usage{Charge: quota.ChargeUsage, Prompt: used})
}

// floods are three tenants: one limited by requests, one by tokens, one by requests in flight.
func floods(seed uint64) (quota.Config, []*flood) {
	r := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	dice := func(n int) int { mu.Lock(); defer mu.Unlock(); return r.IntN(n) }
	c := quota.Config{
		"a": {RequestsPerSecond: 50, RequestBurst: 50},
		"b": {TokensPerMinute: 600_000, TokenBurst: 20_000},
		"c": {InFlight: 30},
	}
	return c, []*flood{
		{tenant: "a", every: 20 * time.Millisecond, tokens: func() int { return 10 }, life: 100 * time.Millisecond},
		{tenant: "b", every: 20 * time.Millisecond, tokens: func() int { return 100 + dice(400) }, life: 150 * time.Millisecond},
		{tenant: "c", every: 20 * time.Millisecond, tokens: func() int { return 10 }, life: 500 * time.Millisecond},
	}
}

// overload floods three routers for a minute, while during happens to them, and compares the tenants with their limits.
func overload(t *testing.T, part float64, during func(*net)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, list := floods(1)
		n := newNet(t, 3, c)
		var all sync.WaitGroup
		for _, f := range list {
			all.Go(func() { f.run(n, time.Minute, &all) })
		}
		most := 30
		if during != nil { // those of a router that is not reached any more run to their end, next to the share of the others
			most += 30 * 2 / 3
			all.Go(func() { during(n) })
		}
		all.Wait()
		within(t, "requests of a", float64(list[0].requests), 50*60+50, part)
		within(t, "tokens of b", float64(list[1].used), 600_000+20_000, part)
		within(t, "requests of c", float64(list[2].requests), 30*60/0.5, part)
		n.close()
		t.Logf("%d calls between routers in a minute", n.calls/2)
		if list[2].most > most {
			t.Errorf("%d requests of c are in flight at once, want at most %d", list[2].most, most)
		}
	})
}

func TestLimitsHoldOverTheFleet(t *testing.T) { overload(t, 0.05, nil) }

func TestLimitsHoldInAPartition(t *testing.T) {
	for i := range 3 {
		overload(t, 0.10, func(n *net) {
			time.Sleep(20 * time.Second)
			n.split(fmt.Sprintf("0000000%d", i), true)
			time.Sleep(10 * time.Second)
			n.split(fmt.Sprintf("0000000%d", i), false)
		})
	}
}

// A router that reaches the others and is not reached by them is cut off, too.
func TestLimitsHoldWhenARouterIsDeaf(t *testing.T) {
	for i := range 1 {
		overload(t, 0.10, func(n *net) {
			deaf := func(id string) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.deaf = id
			}
			time.Sleep(20 * time.Second)
			deaf(fmt.Sprintf("0000000%d", i))
			time.Sleep(10 * time.Second)
			deaf("")
		})
	}
}

// The owner of each tenant dies, one after the other, each starts again after some seconds.
func TestLimitsHoldWhenOwnersDie(t *testing.T) {
	overload(t, 0.10, func(n *net) {
		for _, tenant := range []string{"a", "b", "c"} {
			time.Sleep(10 * time.Second)
			gone := n.owner(tenant)
			n.remove(gone, true)
			time.Sleep(5 * time.Second)
			n.mu.Lock()
			delete(n.dead, gone.id) // another process at the same address
			n.mu.Unlock()
			c, _ := floods(0)
			n.add(gone.id, c)
		}
	})
}

// All routers are replaced, one after the other, as in an update.
func TestLimitsHoldInAnUpdate(t *testing.T) {
	overload(t, 0.05, func(n *net) {
		c, _ := floods(0)
		for i, old := range n.list() {
			time.Sleep(10 * time.Second)
			next := n.add(fmt.Sprintf("0000000%d", 3+i), c)
			n.mu.Lock()
			next.fitness = grants.Unable
			n.mu.Unlock()
			time.Sleep(2 * time.Second)
			n.mu.Lock()
			next.fitness, old.fitness = grants.Able, grants.Leaving
			n.mu.Unlock()
			time.Sleep(2 * time.Second)
			n.remove(old, false)
		}
	})
}

// A tenant with small limits gets exactly them, whichever routers its requests reach.
func TestSmallLimitsAreExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := quota.Config{
			"requests": {RequestsPerSecond: 0.01, RequestBurst: 7}, "tokens": {TokensPerMinute: 60, TokenBurst: 1000},
			"flight": {InFlight: 4}, "reserved": {ReservedTokens: 500},
		}
		n := newNet(t, 3, c)
		defer n.close()
		list := n.list()
		for tenant, want := range map[string]int{"requests": 7, "tokens": 10, "flight": 4, "reserved": 5} {
			got := 0
			var last *quota.Refusal
			for i := range 30 {
				end, refusal := take(list[i%3], tenant, 100)
				last = refusal
				if end != nil {
					got++
				}
			}
			if got != want || last == nil {
				t.Errorf("%s: %d requests are admitted, want %d", tenant, got, want)
			}
			if tenant == "tokens" && (last.RetryAfter < 95*time.Second || last.RetryAfter > 101*time.Second || last.State.TokensLeft != 0 || last.State.Tokens != 1000) {
				t.Errorf("refusal %+v, want the fleet's account", last)
			}
		}
	})
}

// One request after the other, each at another router, with one in flight allowed: none is refused.
func TestASlotMovesWithTheRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, 3, quota.Config{"a": {InFlight: 1, ReservedTokens: 100, TokensPerMinute: 6000, TokenBurst: 200}})
		defer n.close()
		for i := range 60 {
			end, refusal := take(n.list()[i%3], "a", 100)
			if refusal != nil {
				t.Fatalf("request %d: %+v", i, refusal)
			}
			time.Sleep(time.Second)
			end(quota.Usage{Charge: quota.ChargeUsage, Prompt: 90})
			time.Sleep(5 * time.Millisecond) // the client's way to the next router
		}
	})
}

// A change of the owner keeps what was taken: a bucket that is half empty stays that, however the owner leaves.
func TestANewOwnerContinuesTheAccount(t *testing.T) {
	for name, change := range map[string]func(n *net, owner *node){
		"killed":  func(n *net, owner *node) { n.remove(owner, true) },
		"removed": func(n *net, owner *node) { n.remove(owner, false) },
		"leaving": func(n *net, owner *node) {
			n.mu.Lock()
			owner.fitness = grants.Leaving
			n.mu.Unlock()
			time.Sleep(time.Second)
			n.remove(owner, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNet(t, 3, quota.Config{"a": {TokensPerMinute: 60, TokenBurst: 10_000}})
				defer n.close()
				owner := n.owner("a")
				for range 5 { // at the owner itself: the others know of it by its copies only
					end, _ := take(owner, "a", 1000)
					end(quota.Usage{Charge: quota.ChargeBooked})
				}
				time.Sleep(time.Second)
				change(n, owner)
				time.Sleep(3 * time.Second)
				want := 5
				if name == "killed" { // one of three routers may live on elsewhere, with its share
					want = 3
				}
				got := 0
				for i := range 20 {
					if end, _ := take(n.list()[i%2], "a", 1000); end != nil {
						got++
						end(quota.Usage{Charge: quota.ChargeBooked})
					}
				}
				if got != want {
					t.Errorf("%d of 5 bookings are left after the owner is %s, want %d", got, name, want)
				}
			})
		})
	}
}

// An owner that is not reached for a moment does not double the account: what both parts have taken meanwhile counts, by a third of it
// more or less where the account was divided after that.
func TestAShortSilenceKeepsTheAccount(t *testing.T) {
	for _, silence := range []time.Duration{300 * time.Millisecond, 1100 * time.Millisecond, 1500 * time.Millisecond, 2 * time.Second, 4 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			n := newNet(t, 3, quota.Config{"a": {TokensPerMinute: 60, TokenBurst: 100_000}})
			defer n.close()
			owner := n.owner("a")
			var other *node
			for _, r := range n.list() {
				if r != owner {
					other = r
				}
			}
			use := func(r *node, times int) (admitted int) {
				for range times {
					if end, _ := take(r, "a", 1000); end != nil {
						end(quota.Usage{Charge: quota.ChargeBooked})
						admitted++
					}
				}
				return admitted
			}
			use(owner, 50)
			time.Sleep(time.Second)
			n.split(owner.id, true)
			time.Sleep(silence)
			taken := 50 + use(owner, 10) + use(other, 10)
			n.split(owner.id, false)
			time.Sleep(3 * time.Second)
			all := taken + use(other, 60)
			all += use(owner, 60)
			if all < 85 || all > 115 || taken < 60 {
				t.Errorf("after a silence of %s: %d requests of 100 are admitted, %d of them before its end", silence, all, taken)
			}
			t.Logf("after a silence of %s: %d requests of 100 are admitted", silence, all)
		})
	}
}

// Requests that wait for an owner which changes leave nothing behind that stops later ones.
func TestWaitingOverAChangeOfOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, 2, quota.Config{"a": {InFlight: 50, RequestsPerSecond: 1000}})
		defer n.close()
		owner := n.owner("a")
		var other *node
		for _, r := range n.list() {
			if r != owner {
				other = r
			}
		}
		for range 5 {
			n.split(owner.id, true)
			var all sync.WaitGroup
			for range 40 {
				all.Go(func() {
					if end, _ := take(other, "a", 1); end != nil {
						end(quota.Usage{})
					}
				})
			}
			all.Wait()
			time.Sleep(3 * time.Second)
			n.split(owner.id, false)
			time.Sleep(3 * time.Second)
		}
		held := 0
		for range 60 {
			if end, _ := take(other, "a", 1); end != nil {
				held++
			}
		}
		if held != 50 {
			t.Errorf("%d requests are admitted afterwards, want 50", held)
		}
	})
}

// A router without the others grants its share: routers of an older version, and those that are not reached, grant theirs.
func TestAPartGrantsItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, 3, quota.Config{"a": {TokensPerMinute: 60_000, TokenBurst: 1000}, "one": {InFlight: 1}})
		defer n.close()
		alone := n.list()[0]
		n.split(alone.id, true)
		time.Sleep(3 * time.Second)
		if share := alone.grants.View().Share(); math.Abs(share-1.0/3) > 1e-9 {
			t.Fatalf("its share is %v", share)
		}
		used := 0
		for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
			if end, _ := take(alone, "a", 50); end != nil {
				used += 50
				end(quota.Usage{Charge: quota.ChargeBooked})
			}
		}
		within(t, "tokens", float64(used), 10_000.0/3+1000.0/3, 0.05)
		if _, refusal := take(alone, "one", 1); refusal != nil {
			t.Errorf("a limit of one is none: %+v", refusal)
		}
	})
}

// Requests of a busy tenant that is within its limits hardly ever wait for another router, and are never refused.
func TestALeaseSavesTheRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, 3, quota.Config{"a": {RequestsPerSecond: 1000, TokensPerMinute: 6_000_000, InFlight: 1000}})
		defer n.close()
		requests, waited := 0, 0
		for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(5 * time.Millisecond) {
			for _, r := range n.list() {
				at := time.Now()
				end, refusal := take(r, "a", 50)
				if refusal != nil {
					t.Fatalf("refused: %+v", refusal)
				}
				requests++
				if time.Since(at) > 0 {
					waited++
				}
				end(quota.Usage{Charge: quota.ChargeUsage, Prompt: 50})
			}
		}
		if waited*50 > requests {
			t.Errorf("%d of %d requests waited for another router", waited, requests)
		}
	})
}

// A fleet of one router asks none.
func TestAFleetOfOneAsksNoRouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, 1, quota.Config{"a": {RequestsPerSecond: 1, RequestBurst: 5}})
		defer n.close()
		got := 0
		for range 20 {
			if end, _ := take(n.list()[0], "a", 1); end != nil {
				got++
			}
		}
		if got != 5 || n.calls > 0 {
			t.Errorf("%d requests and %d calls, want 5 and none", got, n.calls)
		}
	})
}

// Random lives of requests at routers that come and go, die and lose each other: at rest, nothing is in flight and no tenant owes.
func TestNothingIsLentAtRest(t *testing.T) {
	for seed := range uint64(3) {
		synctest.Test(t, func(t *testing.T) {
			c := quota.Config{quota.Default: {RequestsPerSecond: 50, TokensPerMinute: 60_000, InFlight: 10, ReservedTokens: 3000}}
			n := newNet(t, 3, c)
			defer n.close()
			var all sync.WaitGroup
			for worker := range 20 {
				all.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(worker)))
					for range 200 {
						list := n.list()
						end, refusal := take(list[r.IntN(len(list))], fmt.Sprintf("t%d", r.IntN(4)), r.IntN(500))
						if refusal != nil {
							time.Sleep(min(refusal.RetryAfter, 200*time.Millisecond))
							continue
						}
						time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
						end(quota.Usage{Charge: quota.Charge(r.IntN(4)), Prompt: r.IntN(1000)})
					}
				})
			}
			r := rand.New(rand.NewPCG(seed, 99))
			for i := range 10 {
				time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
				list := n.list()
				some := list[r.IntN(len(list))]
				switch {
				case i%3 == 0:
					n.split(some.id, true)
					time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
					n.split(some.id, false)
				case i%3 == 1 && len(list) > 2:
					n.remove(some, r.IntN(2) == 0)
				default:
					n.add(fmt.Sprintf("0000000%d", 3+i%7), c)
				}
			}
			all.Wait()
			time.Sleep(3 * time.Minute)
			for _, o := range n.list() {
				for i := range 4 {
					got, tenant := 0, fmt.Sprintf("t%d", i)
					for range 20 {
						if _, refusal := take(o, tenant, 1); refusal == nil {
							got++
						} else if refusal.State.RequestsLeft == 0 || refusal.State.TokensLeft < 5000 {
							t.Errorf("%s after a rest: %+v", tenant, refusal)
						}
					}
					if got != 10 && o == n.list()[0] {
						t.Errorf("%s has room for %d requests after a rest, want 10", tenant, got)
					}
				}
			}
		})
	}
}

// Tenants whose names no message may have share their limits as others do, and stop no other tenant's reports.
func TestOddNamesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNet(t, 3, quota.Config{quota.Default: {RequestsPerSecond: 0.01, RequestBurst: 7}})
		defer n.close()
		for _, tenant := range []string{"", "\xff\xfe", "\x00other", strings.Repeat("n", 100_000), "plain"} {
			got := 0
			for i := range 21 {
				if end, _ := take(n.list()[i%3], tenant, 1); end != nil {
					got++
				}
			}
			if got != 7 {
				t.Errorf("%.10q: %d requests are admitted, want 7", tenant, got)
			}
		}
	})
}
