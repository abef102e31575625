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
	d := &decision.Decision{ID: fmt.Sprint("d", n), Model: "m", At: time.Unix(1, 2), Chosen: dice.IntN(n+1) - 1, Shadow: &decision.Shadow{Rank: 3}}
	for i := range n {
		c := decision.Candidate{}
		if i > 0 {
			c = d.Candidates[i-1]
		}
		c.Replica = replica.ID(fmt.Sprint("replica-", i/2))
		fields := reflect.ValueOf(&c).Elem()
		for f := range fields.NumField() {
			if dice.Float64() >= share {
				continue
			}
			switch v := fields.Field(f); {
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

func TestAPackedDecisionIsTheSame(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	var names []replica.ID
	for round := range 500 {
		d := some(dice, dice.IntN(70), dice.Float64())
		p := decision.Pack(d, names)
		got := p.Unpack()
		if !reflect.DeepEqual(got, d) {
			t.Fatalf("round %d: %+v\nwant %+v", round, got, d)
		}
		var picked replica.ID
		if pick := d.Pick(); pick != nil {
			picked = pick.Replica
		}
		if p.Picked() != picked || p.Head().ID != d.ID || p.Head().Candidates != nil {
			t.Fatalf("round %d: picked %q, want %q; head %+v", round, p.Picked(), picked, p.Head())
		}
		if len(got.Candidates) > 0 { // what a reader does to its own is not seen by others
			got.Candidates[0].Cost++
			if again := p.Unpack(); again.Candidates[0] != d.Candidates[0] {
				t.Fatalf("round %d: a reader's change is seen", round)
			}
		}
		names = p.Names()
	}
}

// A value that compares unequal to itself is kept too.
func TestAPackedDecisionKeepsNaN(t *testing.T) {
	d := &decision.Decision{Candidates: []decision.Candidate{{TTFT: math.NaN()}, {TTFT: math.NaN(), Cost: 1}}}
	for _, c := range decision.Pack(d, nil).Unpack().Candidates {
		if !math.IsNaN(c.TTFT) {
			t.Errorf("%+v", c)
		}
	}
}

func TestDecisionsOfOnePoolShareItsNames(t *testing.T) {
	dice := rand.New(rand.NewPCG(3, 4))
	first := decision.Pack(some(dice, 64, .1), nil)
	second := decision.Pack(some(dice, 64, .1), first.Names())
	if unsafe.SliceData(first.Names()) != unsafe.SliceData(second.Names()) {
		t.Error("the names are kept twice")
	}
	if other := decision.Pack(some(dice, 63, .1), first.Names()); len(other.Names()) != 63 {
		t.Errorf("%d names for 63 candidates", len(other.Names()))
	}
}

// Pack copies what follows Replica as words: it must have no pointers, which the garbage collector would not see, and fill words.
func TestACandidateHasNoPointersButItsName(t *testing.T) {
	about := reflect.TypeFor[decision.Candidate]()
	if about.Field(0).Name != "Replica" || about.Field(1).Name != "Slot" || (about.Size()-about.Field(1).Offset)%8 != 0 || about.Field(1).Offset%8 != 0 {
		t.Errorf("Candidate begins with %s, %s at %d and has %d bytes", about.Field(0).Name, about.Field(1).Name, about.Field(1).Offset, about.Size())
	}
	if words := (about.Size() - about.Field(1).Offset) / 8; words > 64 {
		t.Errorf("a Candidate has %d words, more than a mask has bits", words)
	}
	plain := []reflect.Kind{reflect.Bool, reflect.Int32, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64}
	for i := 1; i < about.NumField(); i++ {
		if f := about.Field(i); !slices.Contains(plain, f.Type.Kind()) {
			t.Errorf("%s is a %s", f.Name, f.Type.Kind())
		}
	}
}

func BenchmarkPack(b *testing.B) {
	d := some(rand.New(rand.NewPCG(5, 6)), 64, .2)
	p := decision.Pack(d, nil)
	b.ReportAllocs()
	for b.Loop() {
		decision.Pack(d, p.Names())
	}
}
