package grants

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
)

func TestReportsAndGrantsArriveAsTheyWere(t *testing.T) {
	r := Report{
		Tenant: "Équipe", Epoch: math.MaxUint64, Sequence: 7, Returned: Amounts{-1.5, 2e9}, Holding: Holding{3, 4}, Need: Amounts{1, 2}, Waiting: Amounts{3, 4},
		More: Amounts{5, 6}, NeedHolding: Holding{7, 8}, MoreHolding: Holding{9, 10}, Handover: true, Assumed: Amounts{11, 12}, Part: 0.5,
	}
	if got := fromReport(report(r)); got != r {
		t.Errorf("%+v arrives as %+v", r, got)
	}
	for _, g := range []Grant{
		{Epoch: 1, Sequence: 2, Granted: Amounts{3, 4}, Holding: Holding{5, 6}, Account: Account{Level: Amounts{-7, 8}, Holders: []Holder{{"0000000a", Holding{9, 10}}}, RequestTime: time.Second / 2}},
		{Epoch: 1, Sequence: 2, Refusal: NotOwner}, {Epoch: 1, Sequence: 2, Refusal: UnknownEpoch}, {},
	} {
		if got := fromGrant(grant(g)); !reflect.DeepEqual(got, g) {
			t.Errorf("%+v arrives as %+v", g, got)
		}
	}
}

func TestARefusalOfALaterVersionGrantsNothing(t *testing.T) {
	if got := fromGrant(&pb.LimitGrant{Refusal: 99, Granted: &pb.LimitAmounts{Requests: 5}}); got.Refusal != NotOwner {
		t.Errorf("%+v", got)
	}
}

// Whatever arrives, a report asks for nothing below zero.
func FuzzReport(f *testing.F) {
	whole, err := proto.Marshal(report(Report{Tenant: "a", Sequence: 1, Need: Amounts{-5, math.Inf(1)}, NeedHolding: Holding{-1, math.MaxInt}}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Fuzz(func(t *testing.T, b []byte) {
		in := &pb.LimitReport{}
		if proto.Unmarshal(b, in) != nil {
			return
		}
		r := fromReport(in)
		for _, a := range []Amounts{r.Need, r.Waiting, r.More} {
			if a.Requests < 0 || a.Tokens < 0 {
				t.Errorf("it needs %+v", a)
			}
		}
	})
}

func TestTheFittestOwns(t *testing.T) {
	v := NewView("b", []Member{{"b", Unable}, {"a", Leaving}, {"c", Able}, {"d", Able}}, 4, 0)
	owners := map[string]int{}
	for i := range 1000 {
		owners[v.Owner(fmt.Sprint("tenant ", i))]++
	}
	if len(owners) != 2 || owners["c"] < 400 || owners["d"] < 400 {
		t.Errorf("owners %v, want the able ones about equally", owners)
	}
	for id, want := range map[string]bool{"a": true, "d": true, "e": false, "": false} {
		if v.Reaches(id) != want {
			t.Errorf("it reaches %q: %v", id, !want)
		}
	}
}

// A router that leaves or joins moves its own accounts only.
func TestFewAccountsMove(t *testing.T) {
	var members []Member
	for i := range 5 {
		members = append(members, Member{ID: fmt.Sprintf("%08x", rand.Uint32N(1<<31)+uint32(i))})
	}
	whole, rest := NewView("", members, 5, 0), NewView("", members[1:], 5, 1)
	for i := range 1000 {
		tenant := fmt.Sprint("tenant ", i)
		if before := whole.Owner(tenant); before != members[0].ID && before != rest.Owner(tenant) {
			t.Fatalf("%s moves from %s to %s", tenant, before, rest.Owner(tenant))
		}
	}
}

func TestTheShareShrinksWhenRoutersAreMissedForAWhile(t *testing.T) {
	var a absent
	now := time.Now()
	for _, step := range []struct {
		after   time.Duration
		missing int
		want    int
	}{{0, 0, 0}, {0, 1, 0}, {settle / 2, 1, 0}, {settle / 4, 0, 0}, {0, 2, 0}, {settle, 2, 2}, {0, 3, 2}, {0, 1, 1}, {0, -1, 0}} {
		now = now.Add(step.after)
		if got := a.count(step.missing, now); got != step.want {
			t.Errorf("%+v: %d count as missed", step, got)
		}
	}
	v := NewView("a", []Member{{ID: "a"}, {ID: "b"}}, 3, 0)
	if v.Share() != 1 || math.Abs(v.ShareNow()-2.0/3) > 1e-9 {
		t.Errorf("shares %v and %v", v.Share(), v.ShareNow())
	}
}
