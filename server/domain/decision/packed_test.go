package decision_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// some is a decision among n ranks, whose fields have values by chance; share of them differ between ranks.
func some(dice *rand.Rand, n int, share float64) *decision.Decision {
	d := &decision.Decision{
		Request: decision.Request{ID: fmt.Sprint("d", n), Model: "m"},
		At:      time.Unix(1, 2),
		Ranks:   decision.Ranks{Chosen: dice.IntN(n+1) - 1},
		Shadow:  &decision.Shadow{Rank: 3},
	}
	for i := range n {
		c := decision.Candidate{}
		if i > 0 {
			c = d.Candidates[i-1]
		}
		c.Replica = replica.ID(fmt.Sprint("replica-", i/2))
		for _, v := range leaves(reflect.ValueOf(&c).Elem()) {
			if dice.Float64() >= share {
				continue
			}
			switch {
			case v.CanFloat():
				v.SetFloat([]float64{dice.NormFloat64(), math.Inf(1), math.Copysign(0, -1), 0}[dice.IntN(4)])
			case v.CanInt():
				v.SetInt(dice.Int64())
			case v.CanUint():
				v.SetUint(dice.Uint64())
			case v.Kind() == reflect.Bool:
				v.SetBool(dice.IntN(2) == 0)
			}
		}
		d.Candidates = append(d.Candidates, c)
	}
	return d
}

// leaves are the fields of a struct, those of the structs in it in their place.
func leaves(v reflect.Value) (list []reflect.Value) {
	if v.Kind() != reflect.Struct {
		return []reflect.Value{v}
	}
	for i := range v.NumField() {
		list = append(list, leaves(v.Field(i))...)
	}
	return list
}

// packed is d with its candidates packed.
func packed(d *decision.Decision, names []replica.ID) *decision.Decision {
	p := *d
	p.Candidates = nil
	new(decision.Packer).Pack(&p.Ranks, d.Candidates, names)
	return &p
}

func TestPackedCandidatesAreTheSame(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	var packer decision.Packer
	for round := range 500 {
		d := some(dice, dice.IntN(70), dice.Float64())
		copied := *d
		p := &copied
		p.Candidates = nil
		packer.Pack(&p.Ranks, d.Candidates, nil)
		list := p.List()
		if !slices.Equal(list, d.Candidates) || p.Listed() != len(d.Candidates) {
			t.Fatalf("round %d: %+v\nwant %+v", round, list, d.Candidates)
		}
		pick, want := p.Pick(), d.Pick()
		if (pick == nil) != (want == nil) || pick != nil && *pick != *want {
			t.Fatalf("round %d: the pick is %+v, want %+v", round, pick, want)
		}
		if p.Fastest() != d.Fastest() || p.BestOverlap() != d.BestOverlap() || p.Servers() != d.Servers() || p.HasOtherReplica() != d.HasOtherReplica() {
			t.Fatalf("round %d: of the packed one %v %d %d %t, of the other %v %d %d %t", round, p.Fastest(), p.BestOverlap(), p.Servers(), p.HasOtherReplica(),
				d.Fastest(), d.BestOverlap(), d.Servers(), d.HasOtherReplica())
		}
		if len(list) > 0 { // what is done to one list is not seen in another
			list[0].Cost++
			if p.List()[0] != d.Candidates[0] {
				t.Fatalf("round %d: a reader's change is seen", round)
			}
		}
	}
}

// Of candidates that are listed as they are, those that could be chosen count.
func TestWhatIsAskedOfAllCandidates(t *testing.T) {
	d := &decision.Decision{
		Ranks: decision.Ranks{Chosen: 1, Candidates: []decision.Candidate{
			{
				RankID:   decision.RankID{Replica: "a"},
				Forecast: decision.Forecast{TTFT: 1},
				Overlap:  decision.Overlap{GPU: 9, CPU: 1},
				Veto:     decision.VetoState,
			}, {RankID: decision.RankID{Replica: "b"}, Forecast: decision.Forecast{TTFT: 3}, Overlap: decision.Overlap{GPU: 4}}, {RankID: decision.RankID{Replica: "b"}, Forecast: decision.Forecast{TTFT: 2}}, {RankID: decision.RankID{Replica: "b"}},
		}},
	}
	for name, one := range map[string]*decision.Decision{"packed": packed(d, nil), "not packed": d} {
		if one.Fastest() != 2 || one.BestOverlap() != 10 || one.Servers() != 3 || one.HasOtherReplica() {
			t.Errorf("%s: %v s, overlap %d, %d servers, another replica %t", name, one.Fastest(), one.BestOverlap(), one.Servers(), one.HasOtherReplica())
		}
		none := *one
		if none.Chosen = -1; none.Pick() != nil || none.HasOtherReplica() {
			t.Errorf("%s: a decision without a pick has %+v", name, none.Pick())
		}
		none.Elsewhere, none.Chosen = true, 1
		if !none.HasOtherReplica() {
			t.Errorf("%s: another router's decision says that there is another replica", name)
		}
	}
}

// A value that compares unequal to itself is kept too.
func TestPackedCandidatesKeepNaN(t *testing.T) {
	d := &decision.Decision{Ranks: decision.Ranks{Candidates: []decision.Candidate{{Forecast: decision.Forecast{TTFT: math.NaN()}}, {Forecast: decision.Forecast{TTFT: math.NaN()}, Cost: 1}}}}
	for _, c := range packed(d, nil).List() {
		if !math.IsNaN(c.TTFT) {
			t.Errorf("%+v", c)
		}
	}
}

// Candidates that are set count, whatever was packed before.
func TestCandidatesReplacePackedOnes(t *testing.T) {
	d := packed(&decision.Decision{Ranks: decision.Ranks{Chosen: 1, Candidates: []decision.Candidate{{RankID: decision.RankID{Replica: "a"}}, {RankID: decision.RankID{Replica: "b"}}}}}, []replica.ID{"a", "b"})
	d.Candidates, d.Chosen = []decision.Candidate{{RankID: decision.RankID{Replica: "c"}}}, 0
	if d.Listed() != 1 || d.List()[0].Replica != "c" || d.Pick().Replica != "c" {
		t.Errorf("%d candidates, the pick is %+v", d.Listed(), d.Pick())
	}
}

// Pack copies what follows Replica as words: it must have no pointers, which the garbage collector would not see, and fill words.
func TestACandidateHasNoPointersButItsName(t *testing.T) {
	size, slot := unsafe.Sizeof(decision.Candidate{}), unsafe.Offsetof(decision.RankID{}.Slot)
	if unsafe.Offsetof(decision.Candidate{}.RankID) != 0 || unsafe.Offsetof(decision.RankID{}.Replica) != 0 || slot != unsafe.Sizeof(replica.ID("")) || (size-slot)%8 != 0 || slot%8 != 0 {
		t.Errorf("a Candidate has its slot at %d and has %d bytes", slot, size)
	}
	if words := (size - slot) / 8; words > 64 {
		t.Errorf("a Candidate has %d words, more than a mask has bits", words)
	}
	if end := unsafe.Offsetof(decision.Candidate{}.Forecast) + unsafe.Offsetof(decision.Forecast{}.TTFT) + 8; end > 64 {
		t.Errorf("the time to the first token ends at byte %d, behind the first cache line", end)
	}
	plain := []reflect.Kind{reflect.Bool, reflect.Int32, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64}
	for i, v := range leaves(reflect.ValueOf(decision.Candidate{})) {
		if first := i == 0; first != (v.Kind() == reflect.String) || !first && !slices.Contains(plain, v.Kind()) {
			t.Errorf("field %d is a %s", i, v.Kind())
		}
	}
}

func BenchmarkPack(b *testing.B) {
	list := some(rand.New(rand.NewPCG(5, 6)), 64, .2).Candidates
	names := make([]replica.ID, len(list))
	for i := range list {
		names[i] = list[i].Replica
	}
	var packer decision.Packer
	b.ReportAllocs()
	for b.Loop() {
		packer.Pack(new(decision.Ranks), list, names)
	}
}
