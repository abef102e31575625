package replay

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Roles are the parts that the replicas may take in split requests, by their number. The zero value has replicas without a connector, which
// split nothing.
type Roles struct {
	// Prefill replicas compute prompts for others, Decode replicas answer, Both may do either. The first replicas prefill.
	Prefill, Decode, Both int
}

// ParseRoles reads none, both, or numbers of replicas by role such as 2p6d or 1p3d4b, which must add up to n replicas.
func ParseRoles(text string, n int) (Roles, error) {
	switch text {
	case "none":
		return Roles{}, nil
	case "both":
		return Roles{Both: n}, nil
	}
	var r Roles
	places := map[byte]*int{'p': &r.Prefill, 'd': &r.Decode, 'b': &r.Both}
	for rest := text; rest != ""; {
		end := strings.IndexAny(rest, "pdb")
		if end < 1 {
			return Roles{}, fmt.Errorf("roles %q: must be none, both, or numbers of replicas that prefill, decode and do both, such as 2p6d", text)
		}
		count, err := strconv.Atoi(rest[:end])
		if place := places[rest[end]]; err != nil || count < 1 || *place != 0 {
			return Roles{}, fmt.Errorf("roles %q: each role may be named once, with a number from 1", text)
		}
		*places[rest[end]], rest = count, rest[end+1:]
	}
	return r, r.check(n)
}

// check reports roles that n replicas cannot have.
func (r Roles) check(n int) error {
	sum := r.Prefill + r.Decode + r.Both
	switch {
	case sum == 0:
		return nil
	case sum != n:
		return fmt.Errorf("roles %s: name %d replicas, there are %d", r, sum, n)
	case r.Decode+r.Both == 0:
		return fmt.Errorf("roles %s: no replica answers", r)
	}
	return nil
}

// String gives the roles in the form that ParseRoles reads.
func (r Roles) String() string {
	if r == (Roles{}) {
		return "none"
	}
	if r.Prefill+r.Decode == 0 {
		return "both"
	}
	text := ""
	for _, part := range []struct {
		n    int
		name string
	}{{r.Prefill, "p"}, {r.Decode, "d"}, {r.Both, "b"}} {
		if part.n > 0 {
			text += strconv.Itoa(part.n) + part.name
		}
	}
	return text
}

// labels are those of the i-th replica.
func (r Roles) labels(i int) map[string]string {
	if r == (Roles{}) {
		return nil
	}
	role := replica.AnyRole
	switch {
	case i < r.Prefill:
		role = replica.PrefillOnly
	case i < r.Prefill+r.Decode:
		role = replica.DecodeOnly
	}
	return map[string]string{replica.LabelConnector: replica.NIXL.String(), replica.LabelRole: role.String()}
}

// SplitRule says which requests are split between two replicas.
type SplitRule string

// The rules. All of them take the cheapest pair by price.
const (
	// SplitByPrice is the product's rule.
	SplitByPrice SplitRule = "price"
	// SplitOnly is the product's rule without copies of prompts' beginnings, PullOnly these copies alone.
	SplitOnly SplitRule = "splits-only"
	PullOnly  SplitRule = "pulls-only"
	// SplitAlways splits every request that can be.
	SplitAlways SplitRule = "always"
	// SplitNever splits none.
	SplitNever SplitRule = "never"
	// SplitDynamo is isl_bounding of Dynamo 1.6: at least 2,048 uncached tokens and 0.7 of the prompt.
	SplitDynamo SplitRule = "dynamo-1.6"
	// SplitLLMD is prefix-based-pd-decider of llm-d-router 0.10 with the number of its guides: at least 16 uncached tokens.
	SplitLLMD SplitRule = "llm-d-0.10"
)

// SplitRules lists them.
func SplitRules() []SplitRule {
	return []SplitRule{SplitByPrice, SplitOnly, PullOnly, SplitAlways, SplitNever, SplitDynamo, SplitLLMD}
}

// splits reports whether the rule splits requests, pulls whether it copies the beginnings of prompts.
func (r SplitRule) splits() bool { return r != SplitNever && r != PullOnly }
func (r SplitRule) pulls() bool  { return r == SplitByPrice || r == PullOnly || r == "" }

// threshold is the rule's; nil for one without.
func (r SplitRule) threshold() *selector.Threshold {
	switch r {
	case SplitAlways:
		return &selector.Threshold{}
	case SplitDynamo:
		return &selector.Threshold{Tokens: 2048, Share: 0.7}
	case SplitLLMD:
		return &selector.Threshold{Tokens: 16}
	case SplitByPrice, SplitOnly, PullOnly, SplitNever:
	}
	return nil
}

// ruleset is a policy, and how the replicas divide the work under it.
type ruleset struct {
	Policy decision.Policy
	Roles  Roles
	Split  SplitRule
	Scale  ScaleRule
}

// String names the setup in reports.
func (s ruleset) String() string {
	if s.Scale != (ScaleRule{}) {
		return string(s.Policy) + " " + s.Scale.String()
	}
	if s.Policy == "" || s.Roles == (Roles{}) {
		return string(s.Policy)
	}
	text := string(s.Policy) + " " + s.Roles.String()
	if s.Split != SplitByPrice && s.Split != "" {
		text += " " + string(s.Split)
	}
	return text
}

// name is the setup's name in a report.
func (s ruleset) name() decision.Policy { return decision.Policy(s.String()) }
