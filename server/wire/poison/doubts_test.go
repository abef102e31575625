package poison

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

func TestDoubtsAreSettledByOtherReplicas(t *testing.T) {
	type step struct {
		on      replica.ID
		verdict retry.Verdict
		begun   bool
	}
	for name, c := range map[string]struct {
		steps []step
		end   string // served, refused, begun, or none of them
		want  string
		known int
	}{
		"one failure":                        {[]step{{"a", retry.EngineError, false}}, "", "[a replica false]", 0},
		"served elsewhere":                   {[]step{{"a", retry.EngineError, false}}, "served", "[a replica true]", 0},
		"refused elsewhere":                  {[]step{{"a", retry.EngineError, false}}, "refused", "[a request false]", 0},
		"served elsewhere so far":            {[]step{{"a", retry.Reset, false}}, "begun", "[a replica true]", 0},
		"resumed elsewhere so far":           {[]step{{"a", retry.Broken, true}}, "begun", "[a replica false]", 0},
		"resumed elsewhere":                  {[]step{{"a", retry.Broken, true}}, "served", "[a replica true]", 0},
		"failed in the same way":             {[]step{{"a", retry.EngineError, false}, {"b", retry.Unavailable, false}}, "", "[a request false b request false]", 1},
		"failed in the same way three times": {[]step{{"a", retry.Reset, false}, {"b", retry.Broken, false}, {"c", retry.Malformed, false}}, "", "[a request false b request false c request false]", 1},
		"failed in another way":              {[]step{{"a", retry.EngineError, false}, {"b", retry.Reset, false}}, "", "[a replica false b replica false]", 0},
		"failed twice on the same replica":   {[]step{{"a", retry.EngineError, false}, {"a", retry.EngineError, false}}, "", "[a replica false a replica false]", 0},
		"silent twice":                       {[]step{{"a", retry.Timeout, false}, {"b", retry.Stalled, false}}, "", "[a replica false b rank false]", 0},
		"failed in two ways and served":      {[]step{{"a", retry.EngineError, false}, {"b", retry.Reset, false}}, "served", "[a replica true b replica true]", 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := New()
			o := m.Origin("t", []byte("x"))
			var d Doubts
			var got []string
			report := func(one Doubt, f retry.Finding) {
				if f.Origin != o || f.Verdict != one.Verdict {
					t.Errorf("%+v was found of %+v", f, one)
				}
				got = append(got, fmt.Sprint(one.Replica, " ", f.Cause, " ", f.Sure))
			}
			for _, s := range c.steps {
				d.Add(m, o, Doubt{Replica: s.on, Verdict: s.verdict, Begun: s.begun}, report)
			}
			switch c.end {
			case "served", "begun":
				d.Served(m, o, c.end == "served", report)
			case "refused":
				d.Refused(o, report)
			}
			d.Conclude(m, o, report)
			d.Conclude(m, o, report) // reports nothing again
			if fmt.Sprint(got) != c.want || m.Times(o) != c.known || d.Open() {
				t.Errorf("found %v, known %d times; want %v, %d", got, m.Times(o), c.want, c.known)
			}
			if d.Alike() != (c.known > 0) {
				t.Errorf("alike: %v", d.Alike())
			}
		})
	}
}

func TestAFailureOfKnownPoisonOrOfASuspectIsNotTheReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New()
		found := func(o retry.Origin) (cause retry.Cause) {
			var d Doubts
			report := func(_ Doubt, f retry.Finding) { cause = f.Cause }
			d.Add(m, o, Doubt{Replica: "a", Verdict: retry.EngineError}, report)
			d.Conclude(m, o, report)
			return cause
		}
		poison := m.Origin("a", []byte("poison"))
		m.Failed(poison)
		got := []retry.Cause{found(poison), found(m.Origin("a", []byte("other")))}
		for range credit {
			m.Failed(m.Origin("a", []byte("more poison")))
		}
		got = append(got, found(m.Origin("a", []byte("other"))), found(m.Origin("b", []byte("other"))))
		if want := []retry.Cause{retry.CauseRequest, retry.CauseReplica, retry.CauseTenant, retry.CauseReplica}; !slices.Equal(got, want) {
			t.Errorf("causes %v, want %v", got, want)
		}
	})
}
