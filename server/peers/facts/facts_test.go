package facts

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

func (r *router) isDrained(id replica.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.drained[id] != nil
}

func TestADrainOnOneIsADrainOnAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		a, b, c := f.start("a"), f.start("b"), f.start("c")
		defer f.stopAll()
		pass(2 * time.Second)
		a.drain("r", true)
		pass(time.Millisecond)
		if !b.isDrained("r") || !c.isDrained("r") {
			t.Error("the others have not drained it at once")
		} else if got := b.view().drained["r"]; !reflect.DeepEqual(got, drained()) {
			t.Errorf("another router has %+v, want %+v", *got, *drained())
		}
		b.drain("r", false)
		pass(time.Millisecond)
		if a.isDrained("r") || c.isDrained("r") {
			t.Error("the others have not undrained it at once")
		}
	})
}

func TestARouterThatWasAwayBringsNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		a, b, c := f.start("a"), f.start("b"), f.start("c")
		defer f.stopAll()
		a.drain("undone", true)
		a.drain("kept", true)
		a.store.Registered(spec("r"), time.Hour)
		pass(2 * time.Second)
		f.mu.Lock()
		f.cut = func(from, to string) bool { return from == "c" || to == "c" }
		f.mu.Unlock()
		pass(2 * time.Second)
		b.drain("undone", false)
		b.mu.Lock()
		delete(b.leases, "r") // as the registry does that reports it
		b.mu.Unlock()
		b.store.Deregistered("r")
		c.drain("late", true)
		pass(time.Minute)
		if !c.isDrained("undone") || a.isDrained("late") {
			t.Fatal("the test's cut does not cut")
		}
		// One router restarts while c is away: it must learn what it was, and not what it was before.
		a.stop()
		a = f.start("a2")
		pass(2 * time.Second)
		if !a.isDrained("kept") || a.isDrained("undone") {
			t.Errorf("after a restart: kept %v, undone %v", a.isDrained("kept"), a.isDrained("undone"))
		}
		f.mu.Lock()
		f.cut = nil
		f.mu.Unlock()
		pass(2 * time.Second)
		for _, r := range []*router{a, b, c} {
			if r.isDrained("undone") || !r.isDrained("kept") || !r.isDrained("late") || len(r.view().leases) > 0 {
				t.Errorf("%s: drains %v, registrations %v", r.id, r.view().drained, r.view().leases)
			}
		}
	})
}

func TestRegistrationsServeEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		a, b := f.start("a"), f.start("b")
		defer f.stopAll()
		pass(2 * time.Second)
		a.store.Registered(spec("r"), 40*time.Second)
		pass(0)
		if got := b.view().specs["r"]; !reflect.DeepEqual(got, spec("r")) {
			t.Errorf("got %+v, want %+v", got, spec("r"))
		}
		if left := time.Until(b.view().leases["r"]); left != 40*time.Second {
			t.Errorf("the lease is %v", left)
		}
		quiet := spec("quiet")
		quiet.Events.Endpoint, quiet.Ranks, quiet.Labels = "none", 1, nil
		a.store.Registered(quiet, time.Minute)
		pass(0)
		if got := b.view().specs["quiet"]; !reflect.DeepEqual(got, quiet) {
			t.Errorf("got %+v, want %+v", got, quiet)
		}
		// A renewal counts once the others have less than three quarters of the lease left.
		pass(5 * time.Second)
		a.store.Registered(spec("r"), 40*time.Second)
		pass(0)
		if left := time.Until(b.view().leases["r"]); left != 35*time.Second {
			t.Errorf("after an early renewal the lease is %v", left)
		}
		pass(8 * time.Second)
		a.store.Registered(spec("r"), 40*time.Second)
		pass(0)
		if left := time.Until(b.view().leases["r"]); left != 40*time.Second {
			t.Errorf("after a renewal the lease is %v", left)
		}
		a.store.Registered(spec("r"), 10*time.Second) // a shorter lease counts at once
		pass(0)
		if left := time.Until(b.view().leases["r"]); left != 10*time.Second {
			t.Errorf("after a shorter lease it is %v", left)
		}
		pass(time.Minute)
		c := f.start("c")
		pass(2 * time.Second)
		if len(c.view().leases) != 0 {
			t.Errorf("an expired registration came to a new router: %v", c.view().leases)
		}
		b.store.Registered(spec("r"), 40*time.Second)
		pass(0)
		if len(a.view().leases) != 1 || len(c.view().leases) != 1 {
			t.Error("a registration that had expired cannot be made again on another router")
		}
	})
}

func TestAPeerThatHangsDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		a, b, c := f.start("a"), f.start("b"), f.start("c")
		defer f.stopAll()
		pass(2 * time.Second)
		f.mu.Lock()
		f.hang = func(to string) bool { return to == "b" }
		f.mu.Unlock()
		for i := range 10 {
			a.drain(replica.ID(fmt.Sprint("r", i)), true)
			pass(time.Millisecond)
			if !c.isDrained(replica.ID(fmt.Sprint("r", i))) {
				t.Fatalf("drain %d waits for a peer that hangs", i)
			}
		}
		f.mu.Lock()
		f.hang = nil
		f.mu.Unlock()
		pass(10 * time.Second)
		if len(b.view().drained) != 10 {
			t.Errorf("%d of 10 drains reached the peer after it worked again", len(b.view().drained))
		}
	})
}

func TestRoutersThatAgreeSayLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		a, b := f.start("a"), f.start("b")
		defer f.stopAll()
		for i := range 3000 {
			a.store.Registered(spec(replica.ID(fmt.Sprintf("replica-with-a-long-name-%0200d", i))), time.Hour)
		}
		pass(3 * time.Second)
		if len(b.view().leases) != 3000 {
			t.Fatalf("%d of 3000 registrations", len(b.view().leases))
		}
		f.mu.Lock()
		f.calls = 0
		f.mu.Unlock()
		pass(time.Minute)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.calls > 26 { // both compare every 5 s
			t.Errorf("%d calls in a minute without a change", f.calls)
		}
	})
}

func model(token float64, samples int) speed.Model {
	return speed.Model{Token: token, Bend: 50000, Overhead: 0.003, Base: 0.01, Load: 1, Samples: samples, Steps: 7, Spread: 0.1, Source: decision.SpeedLearned}
}

func TestRatesAreSharedWhenTheyChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		a, b := f.start("a"), f.start("b")
		defer f.stopAll()
		rank := replica.Rank{Replica: "r", Index: 3}
		a.learn(map[replica.Rank]speed.Model{rank: model(1e-4, 100), {Replica: "others"}: model(1e-4, 100)})
		pass(4 * time.Second)
		if want := (map[replica.Rank]speed.Model{rank: model(1e-4, 100)}); !maps.Equal(b.view().taken, want) {
			t.Errorf("got %v, want %v", b.view().taken, want)
		}
		a.learn(map[replica.Rank]speed.Model{rank: model(1.01e-4, 100)})
		pass(4 * time.Second)
		if b.view().taken[rank].Token != 1e-4 {
			t.Error("a change of one percent was published")
		}
		a.learn(map[replica.Rank]speed.Model{rank: model(1.03e-4, 100)})
		pass(4 * time.Second)
		if b.view().taken[rank].Token != 1.03e-4 {
			t.Error("a change of three percent was not published")
		}
		if len(a.view().taken) > 0 {
			t.Errorf("the decider takes its own rates: %v", a.view().taken)
		}
	})
}

// The times of loads go with the rates, and a change of them alone is news.
func TestTimesOfLoadsAreSharedWithTheRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		a, b := f.start("a"), f.start("b")
		defer f.stopAll()
		rank, bare := replica.Rank{Replica: "r", Index: 3}, replica.Rank{Replica: "q"}
		host := func(perToken float64) transfer.Times {
			return transfer.Times{Host: transfer.Model{Start: 0.004, PerToken: perToken, Samples: 9}}
		}
		load := func(perToken float64) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.loads = map[replica.Rank]transfer.Times{rank: host(perToken)}
		}
		load(1e-5)
		a.learn(map[replica.Rank]speed.Model{rank: model(1e-4, 100), bare: model(1e-4, 100)})
		taken := func() transfer.Times {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.others[bare] != (transfer.Times{}) {
				t.Errorf("a rank without loads has %+v", b.others[bare])
			}
			return b.others[rank]
		}
		for _, tt := range []struct{ seen, want float64 }{{1e-5, 1e-5}, {1.01e-5, 1e-5}, {2e-5, 2e-5}} {
			load(tt.seen)
			pass(4 * time.Second)
			if got := taken(); got != host(tt.want) {
				t.Errorf("seen %v: got %+v, want %+v", tt.seen, got, host(tt.want))
			}
		}
	})
}

func TestAnyRouterFindsAPin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		a, b, c := f.start("a"), f.start("b"), f.start("c")
		defer f.stopAll()
		pass(2 * time.Second)
		for i := range 50 {
			response := fmt.Sprint("resp_", i)
			a.pins.Put("team", response, "r")
			a.store.PinMade("team", response, "r")
		}
		pass(0)
		kept := 0
		for i := range 50 {
			response := fmt.Sprint("resp_", i)
			if _, _, ok := c.pins.Find(response); ok {
				kept++
			}
			if _, _, ok := b.pins.Find(response); !ok && !b.store.FindPin(t.Context(), response) {
				t.Errorf("b cannot find %s", response)
			}
			if tenant, at, ok := b.pins.Find(response); !ok || tenant != "team" || at != "r" {
				t.Errorf("%s: %q at %q, %v", response, tenant, at, ok)
			}
		}
		if kept < 5 || kept > 30 {
			t.Errorf("c keeps %d of 50 pins", kept)
		}
		f.mu.Lock()
		f.hang = func(string) bool { return true }
		f.mu.Unlock()
		begin := time.Now()
		for i := range 5 {
			if b.store.FindPin(t.Context(), fmt.Sprint("unknown", i)) {
				t.Error("found a pin that there is not")
			}
		}
		if took := time.Since(begin); took > 5*findTimeout {
			t.Errorf("peers that hang cost %v for each question", took/5)
		}
	})
}

// What comes from outside is bounded and checked.
func TestUnfitFactsAreRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Params{Self: "a", Fleet: alone{}})
		made := func(since time.Duration) *peerv1.FactVersion {
			return &peerv1.FactVersion{Time: timestamppb.New(time.Now().Add(since)), RouterId: "b"}
		}
		fine := made(0)
		rate := func(token float64) *peerv1.RateFact {
			return &peerv1.RateFact{ReplicaId: "r", TokenS: token, BendTokens: 1, StepS: 1, Version: fine}
		}
		loads := func(start, token float64) *peerv1.RateFact {
			f := rate(1)
			f.Host = &peerv1.LoadTimes{StartS: start, TokenS: token, Samples: 1}
			return f
		}
		nan := rate(1)
		nan.Load = -1
		for name, in := range map[string]*peerv1.Facts{
			"no replica":          {Drains: []*peerv1.DrainFact{{Drained: true, Version: fine}}},
			"a long reason":       {Drains: []*peerv1.DrainFact{{ReplicaId: "r", Drained: true, Version: fine, Reason: string(make([]byte, 2000))}}},
			"no version":          {Drains: []*peerv1.DrainFact{{ReplicaId: "r", Drained: true}}},
			"a clock far ahead":   {Drains: []*peerv1.DrainFact{{ReplicaId: "r", Drained: true, Version: made(48 * time.Hour)}}},
			"the end of time":     {Drains: []*peerv1.DrainFact{{ReplicaId: "r", Version: &peerv1.FactVersion{Time: &timestamppb.Timestamp{Seconds: math.MaxInt64}, RouterId: "b"}}}},
			"before 1970":         {Drains: []*peerv1.DrainFact{{ReplicaId: "r", Version: &peerv1.FactVersion{Time: &timestamppb.Timestamp{Seconds: -1}, RouterId: "b"}}}},
			"no time":             {Drains: []*peerv1.DrainFact{{ReplicaId: "r", Version: &peerv1.FactVersion{RouterId: "b"}}}},
			"a huge registration": {Registrations: []*peerv1.RegistrationFact{{ReplicaId: "r", Registration: &peerv1.Registration{Url: string(make([]byte, maxRequest))}, Lease: durationpb.New(1), Version: fine}}},
			"a rate of nothing":   {Rates: []*peerv1.RateFact{rate(0)}},
			"a rate below zero":   {Rates: []*peerv1.RateFact{rate(-1)}},
			"a load below zero":   {Rates: []*peerv1.RateFact{nan}},
			"a load of no time":   {Rates: []*peerv1.RateFact{loads(0, 0)}},
			"a load before it is": {Rates: []*peerv1.RateFact{loads(-1, 1)}},
			"a load without end":  {Rates: []*peerv1.RateFact{loads(1, math.Inf(1))}},
			"nothing at all":      nil,
			"a long replica id":   {Drains: []*peerv1.DrainFact{{ReplicaId: string(make([]byte, 300)), Version: fine}}},
			"undone before a day": {Drains: []*peerv1.DrainFact{{ReplicaId: "r", Version: made(-25 * time.Hour)}}},
		} {
			if n := s.merge(in); n != 0 || s.digest() != 0 {
				t.Errorf("%s was taken", name)
			}
		}
	})
}

func TestFactsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Params{Self: "a", Fleet: alone{}})
		for i := range maxDrains + 100 {
			s.Drained(replica.ID(fmt.Sprint("r", i)), drained())
		}
		if n := len(s.drains.facts); n != maxDrains {
			t.Errorf("%d drains are kept", n)
		}
		if _, known := s.drains.facts["r0"]; known {
			t.Error("the oldest is kept")
		}
		// Dropped ones do not come back, and the newest is never the one that goes.
		old := &peerv1.DrainFact{ReplicaId: "r0", Drained: true, Version: &peerv1.FactVersion{Time: timestamppb.New(time.UnixMilli(1)), RouterId: "b"}}
		if s.merge(&peerv1.Facts{Drains: []*peerv1.DrainFact{old}}) != 0 {
			t.Error("a fact that is older than all that are kept was taken")
		}
		s.Drained("r0", nil)
		time.Sleep(keepGone + time.Minute)
		s.expire()
		if n := len(s.drains.facts); n != maxDrains-1 {
			t.Errorf("%d drains a day after one was undone, want %d", n, maxDrains-1)
		}
	})
}

// state is what a store holds, without what differs by clock.
func state(s *Store) []string {
	var list []string
	for key, e := range s.drains.facts {
		list = append(list, fmt.Sprint("drain ", key, e.version, e.gone, e.value.Reason))
	}
	for key, e := range s.regs.facts {
		list = append(list, fmt.Sprint("registration ", key, e.version, e.gone, specOf(replica.ID(key), e.value.spec)))
	}
	for key, e := range s.rates.facts {
		list = append(list, fmt.Sprint("rate ", key, e.version, e.value))
	}
	slices.Sort(list)
	return list
}

// Random changes on several routers, with facts that are lost, repeated, reordered and late, restarts and partitions: at rest
// all know the same.
func TestStoresAgreeAtRest(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			dice := rand.New(rand.NewPCG(seed, 1))
			const routers = 4
			fresh := func(i, life int) *Store {
				return New(Params{Self: fmt.Sprintf("%d-%d", i, life), Fleet: alone{}})
			}
			var stores [routers]*Store
			for i := range stores {
				stores[i] = fresh(i, 0)
			}
			var flying []*peerv1.Facts
			send := func(s *Store) {
				refs := s.all()
				dice.Shuffle(len(refs), func(i, j int) { refs[i], refs[j] = refs[j], refs[i] })
				flying = append(flying, s.messages(refs[:dice.IntN(len(refs)+1)])...)
			}
			for step := range 400 {
				i := dice.IntN(routers)
				s := stores[i]
				id := replica.ID(fmt.Sprint("r", dice.IntN(6)))
				switch op := dice.IntN(20); {
				case op < 6:
					s.Drained(id, []*registry.Drain{nil, {Reason: fmt.Sprint("step ", step)}}[dice.IntN(2)])
				case op < 8:
					s.Registered(spec(id), time.Duration(1+dice.IntN(100))*time.Second)
				case op < 9:
					s.Deregistered(id)
				case op < 10:
					s.params.Rates = &router{learned: map[replica.Rank]speed.Model{{Replica: id}: model(1e-4*float64(1+dice.IntN(9)), step)}}
					s.publishRates()
				case op < 14:
					send(s)
				case op < 18 && len(flying) > 0: // any message, as often as it happens to come
					s.merge(flying[dice.IntN(len(flying))])
				case op == 18:
					time.Sleep(time.Duration(dice.IntN(5000)) * time.Millisecond)
				case op == 19 && dice.IntN(5) == 0:
					stores[i] = fresh(i, step) // restarted: it knows nothing
				}
			}
			for range routers {
				for _, from := range stores {
					refs := from.all()
					for _, to := range stores {
						dice.Shuffle(len(refs), func(i, j int) { refs[i], refs[j] = refs[j], refs[i] })
						for _, m := range from.messages(refs) {
							to.merge(m)
						}
					}
				}
			}
			for _, s := range stores { // a change after rest is the last, whatever the clocks said
				s.Drained("r0", map[bool]*registry.Drain{true: drained()}[stores[0].drains.facts["r0"].gone])
				for _, o := range stores {
					for _, m := range s.messages(s.all()) {
						o.merge(m)
					}
				}
			}
			time.Sleep(2 * time.Minute) // all leases end
			want := []string(nil)
			for i, s := range stores {
				s.expire()
				got := state(s)
				if i == 0 {
					want = got
				}
				if !slices.Equal(got, want) || s.digest() != stores[0].digest() {
					t.Fatalf("seed %d: store %d has\n%v\nstore 0 has\n%v", seed, i, got, want)
				}
			}
		})
	}
}

// Drains of replicas that there are not are bounded in number and gone after a minute, here and in the registry; those of replicas that
// are found in that time stay, and no router brings the others back.
func TestDrainsOfUnknownReplicasDoNotStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		a, b := f.start("a"), f.start("b")
		defer f.stopAll()
		pass(2 * time.Second)
		lies := &peerv1.Facts{}
		for i := range 3000 {
			lies.Drains = append(lies.Drains, &peerv1.DrainFact{
				ReplicaId: fmt.Sprintf("strange-%04d", i), Drained: true, By: "evil", Version: &peerv1.FactVersion{Time: timestamppb.New(time.Now().Add(20 * time.Hour)), RouterId: "evil"},
			})
		}
		b.drain("r", true)
		a.store.merge(lies)
		count := func(r *router) (facts, inForce int) {
			r.store.mu.Lock()
			facts = len(r.store.drains.facts)
			r.store.mu.Unlock()
			return facts, len(r.view().drained)
		}
		pass(10 * time.Second)
		for _, r := range []*router{a, b} {
			if facts, inForce := count(r); facts > maxStrange+1 || inForce > maxStrange+1 || facts < 2 {
				t.Errorf("%s: %d facts, %d in force; at most %d are allowed", r.id, facts, inForce, maxStrange+1)
			}
		}
		a.present.Store(replica.ID("strange-0001"), true) // it is discovered
		b.present.Store(replica.ID("strange-0001"), true)
		pass(2 * time.Minute)
		for range 20 {
			for _, r := range []*router{a, b} {
				if facts, inForce := count(r); facts != 2 || inForce != 2 || !r.isDrained("r") || !r.isDrained("strange-0001") {
					t.Fatalf("%s: %d facts, %d in force %v; want those of r and strange-0001", r.id, facts, inForce, r.view().drained)
				}
			}
			pass(15 * time.Second)
		}
		a.present.Clear() // a replica that was known may be away
		pass(10 * time.Minute)
		if !a.isDrained("strange-0001") {
			t.Error("the drain of a replica that is away ended")
		}
		a.store.mu.Lock()
		strange := a.store.drains.strange
		a.store.mu.Unlock()
		if strange != 0 || a.store.digest() != b.store.digest() {
			t.Errorf("%d strange facts are counted, digests %x and %x", strange, a.store.digest(), b.store.digest())
		}
	})
}
