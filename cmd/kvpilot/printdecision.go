package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// latency writes a time with three digits, in milliseconds below ten seconds: one unit down a
// column reads better than several.
func latency(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	switch {
	case math.Abs(ms) >= 10_000:
		return fmt.Sprintf("%.1f s", ms/1000)
	case math.Abs(ms) >= 100 || ms == 0:
		return fmt.Sprintf("%.0f ms", ms)
	case math.Abs(ms) >= 10:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.2f ms", ms)
}

// memoryWait says why a program's call waited for memory.
func memoryWait(w *kvpilotv1.MemoryWait) string {
	text := fmt.Sprintf("waited %s for memory (its %d tokens", latency(w.GetWaited().AsDuration()), w.GetNeededTokens())
	switch free := w.GetFreeTokens(); {
	case free >= w.GetNeededTokens():
		text += " fitted and others went first"
	case free > 0:
		text += fmt.Sprintf(" did not fit into the %d that were free", free)
	default:
		text += " did not fit"
	}
	text += fmt.Sprintf("; %d programs before it", w.GetProgramsBefore())
	if d := w.GetExpected().AsDuration(); d > 0 {
		text += "; expected about " + latency(d)
	}
	return text + "; program " + plain(w.GetProgramId()) + ")"
}

// ways says how a request that could be split is served, and at which price the other way was rejected.
func ways(d *kvpilotv1.Decision) []string {
	list := d.GetWays()
	if len(list) == 0 {
		return nil
	}
	facts := make([]string, 0, len(list))
	for i, w := range list {
		verb := "taken: "
		if i > 0 {
			verb = "left: "
		}
		if w.GetKind() == "copy" {
			facts = append(facts, fmt.Sprintf("waited for a copy of the prompt's first %d tokens from %s to %s (%s expected)", w.GetHeldTokens(), plain(w.GetPrefillReplicaId()), plain(w.GetDecodeReplicaId()), latency(w.GetTransfer().AsDuration())))
			continue
		}
		text := "whole on " + plain(w.GetDecodeReplicaId())
		if w.GetKind() == "split" {
			text = fmt.Sprintf("split, prefill on %s, answer on %s, %d tokens moved in %s", plain(w.GetPrefillReplicaId()), plain(w.GetDecodeReplicaId()), w.GetMovedTokens(), latency(w.GetTransfer().AsDuration()))
		}
		facts = append(facts, fmt.Sprintf("%s%s (cost %.4g, first token %s)", verb, text, w.GetCost(), latency(w.GetTtft().AsDuration())))
	}
	return facts
}

// printDecision writes a decision with its candidates, the cheapest first.
func printDecision(out io.Writer, d *kvpilotv1.Decision) error {
	target := d.GetReplicaId()
	if target == "" {
		target = "no replica"
	}
	fmt.Fprintf(out, "%s → %s  (%s, reason %s, attempt %d)\n", plain(d.GetDecisionId()), plain(target), d.GetPolicy(), word(d.GetReason(), "CHOICE_REASON_"), d.GetAttempt()+1)
	facts := []string{fmt.Sprintf("%d prompt tokens", d.GetPromptTokens()), fmt.Sprintf("margin %.4g", d.GetMargin()), fmt.Sprintf("fleet load %.2f", d.GetLoad())}
	if held := d.GetHeld().AsDuration(); held > 0 {
		facts = append(facts, "held "+latency(held))
	}
	if w := d.GetMemoryWait(); w != nil {
		facts = append(facts, memoryWait(w))
	}
	if s := d.GetSplit(); s != nil {
		text := fmt.Sprintf("side %s of the split of %s", plain(s.GetSide()), plain(s.GetModel()))
		if s.GetInsteadOf() != "" {
			text += ", in place of " + plain(s.GetInsteadOf())
		}
		facts = append(facts, text)
	}
	switch by, from := d.GetDecidedBy(), d.GetAskedBy(); {
	case by != "" && from != "":
		facts = append(facts, fmt.Sprintf("decided by router %s for router %s", plain(by), plain(from)))
	case by != "":
		facts = append(facts, "decided by router "+plain(by))
	case from != "":
		facts = append(facts, "decided for router "+plain(from))
	}
	if why := d.GetAlone(); why != kvpilotv1.Alone_ALONE_UNSPECIFIED {
		facts = append(facts, fmt.Sprintf("decided without the other routers (%s)", strings.ReplaceAll(word(why, "ALONE_"), "_", " ")))
	}
	if o := d.GetOutcome(); o != nil {
		facts = append(facts, word(o.GetEnd(), "END_"))
		if t := o.GetTtft().AsDuration(); t > 0 {
			facts = append(facts, fmt.Sprintf("first token after %s (predicted %s)", latency(t), latency(o.GetPredictedTtft().AsDuration())))
		}
		if o.CachedTokens != nil {
			facts = append(facts, fmt.Sprintf("%d tokens were cached (predicted %d)", o.GetCachedTokens(), o.GetPredictedCachedTokens()))
		}
	}
	if l := d.GetDirectory(); l != nil {
		facts = append(facts, fmt.Sprintf("directory %s: %s in %s", plain(l.GetSource()), plain(l.GetResult()), latency(l.GetTook().AsDuration())))
	}
	facts = append(facts, tiers(d)...)
	facts = append(facts, ways(d)...)
	if s := d.GetShadow(); s != nil {
		if s.GetAgrees() {
			facts = append(facts, fmt.Sprintf("the shadow %s agreed", s.GetPolicy()))
		} else {
			facts = append(facts, fmt.Sprintf("the shadow %s would have chosen %s, for a first token %s later", s.GetPolicy(), plain(s.GetReplicaId()), latency(s.GetRegret().AsDuration())))
		}
	}
	if best, later := fastest(d); later >= 10*time.Microsecond {
		facts = append(facts, fmt.Sprintf("regret %s: %s was predicted to be faster", latency(later), plain(best)))
	}
	if id := d.GetTraceId(); id != "" {
		facts = append(facts, "trace "+id)
	}
	wide, _ := terminal(out)
	fmt.Fprintf(out, "%s\n\n", wrapped(facts, wide))
	if err := candidateGrid(d).print(out); err != nil {
		return err
	}
	printConduct(out, d)
	printAdapters(out, d)
	if d.GetOthers()+d.GetVetoedOthers() == 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "\nnot listed: %d more that could serve, %d that could not\n", d.GetOthers(), d.GetVetoedOthers())
	return err
}

// printConduct writes why candidates are avoided that could serve.
func printConduct(out io.Writer, d *kvpilotv1.Decision) {
	for _, c := range d.GetCandidates() {
		k := c.GetConduct()
		if len(k.GetSuspicions()) == 0 {
			continue
		}
		var facts []string
		for _, s := range k.GetSuspicions() {
			switch s {
			case kvpilotv1.Suspicion_SUSPICION_SLOW:
				facts = append(facts, fmt.Sprintf("slow (its output tokens take %.1f times as long as those of its equals)", k.GetSlowness()))
			case kvpilotv1.Suspicion_SUSPICION_EMPTY:
				facts = append(facts, "empty (it gives empty answers where other replicas do not)")
			case kvpilotv1.Suspicion_SUSPICION_UNPROVEN:
				facts = append(facts, fmt.Sprintf("unproven (%.0f %% of what it claims to hold counts, because its answers show no more as cached)", 100*k.GetOverlapTrust()))
			default:
				facts = append(facts, word(s, "SUSPICION_"))
			}
		}
		if drag := c.GetDrag().AsDuration(); drag > 0 {
			facts = append(facts, "which adds "+latency(drag)+" to its cost")
		}
		fmt.Fprintf(out, "\n%s/%d is avoided: %s\n", plain(c.GetReplicaId()), c.GetRank(), strings.Join(facts, ", "))
	}
}

// printAdapters writes where the candidates have the request's LoRA adapter, and its costs.
func printAdapters(out io.Writer, d *kvpilotv1.Decision) {
	var list []string
	for _, c := range d.GetCandidates() {
		a := c.GetAdapter()
		if a == nil {
			continue
		}
		text := fmt.Sprintf("%s/%d %s", plain(c.GetReplicaId()), c.GetRank(), word(a.GetState(), "ADAPTER_STATE_"))
		for _, cost := range []struct {
			of time.Duration
			as string
		}{{a.GetWait().AsDuration(), "waits"}, {a.GetLoad().AsDuration(), "loads in"}, {a.GetLoss().AsDuration(), "costs others"}} {
			if cost.of > 0 {
				text += fmt.Sprintf(" (%s %s)", cost.as, latency(cost.of))
			}
		}
		list = append(list, text)
	}
	if len(list) > 0 {
		wide, _ := terminal(out)
		fmt.Fprintf(out, "\nadapter %s: %s\n", plain(d.GetAdapter()), wrapped(list, wide))
	}
}

// wrapped joins facts with commas, in lines of at most so many cells; zero knows no end of a line.
func wrapped(facts []string, wide int) string {
	var b strings.Builder
	at := 0
	for i, f := range facts {
		if i < len(facts)-1 {
			f += ","
		}
		switch n := cells(f); {
		case i == 0:
			at = n
		case wide > 0 && at+1+n > wide:
			b.WriteString("\n")
			at = n
		default:
			b.WriteString(" ")
			at += 1 + n
		}
		b.WriteString(f)
	}
	return b.String()
}

// overlapText is how many of a prompt's tokens a rank holds, with its tiers where they are not all in GPU memory.
func overlapText(o *kvpilotv1.Overlap) string {
	all := fmt.Sprint(o.GetGpuTokens() + o.GetCpuTokens() + o.GetDiskTokens())
	var below []string
	if n := o.GetCpuTokens(); n > 0 {
		below = append(below, fmt.Sprintf("%d host", n))
	}
	if n := o.GetDiskTokens(); n > 0 {
		below = append(below, fmt.Sprintf("%d store", n))
	}
	if len(below) == 0 {
		return all
	}
	return fmt.Sprintf("%s (%s)", all, strings.Join(below, ", "))
}

// tiers is the load of the chosen rank's part of the prompt below its GPU memory; nothing where it holds none there.
func tiers(d *kvpilotv1.Decision) []string {
	for _, c := range d.GetCandidates() {
		held := c.GetOverlap().GetCpuTokens() + c.GetOverlap().GetDiskTokens()
		if c.GetReplicaId() == d.GetReplicaId() && c.GetRank() == d.GetRank() && held > 0 {
			text := fmt.Sprintf("loads %d of %d tokens below its GPU (%s expected)", c.GetLoadableTokens(), held, latency(c.GetLoad().AsDuration()))
			if named := c.GetNamedTokens(); named > 0 {
				text += fmt.Sprintf(", %d of them by the directory's word", named)
			}
			return []string{text}
		}
	}
	return nil
}

// fastest is the candidate that was predicted to be the first with a token, and by how
// much it would have been earlier than the served one.
func fastest(d *kvpilotv1.Decision) (id string, earlier time.Duration) {
	var served, best *kvpilotv1.Candidate
	for _, c := range d.GetCandidates() {
		if c.GetReplicaId() == d.GetReplicaId() && c.GetRank() == d.GetRank() {
			served = c
		}
		if c.GetVeto() == kvpilotv1.Veto_VETO_UNSPECIFIED && c.GetTtft() != nil && (best == nil || c.GetTtft().AsDuration() < best.GetTtft().AsDuration()) {
			best = c
		}
	}
	if served == nil || best == nil || served.GetTtft() == nil {
		return "", 0
	}
	return best.GetReplicaId(), served.GetTtft().AsDuration() - best.GetTtft().AsDuration()
}

func candidateGrid(d *kvpilotv1.Decision) *grid {
	candidates := slices.Clone(d.GetCandidates())
	slices.SortStableFunc(candidates, func(a, b *kvpilotv1.Candidate) int {
		if mayA, mayB := a.GetVeto() == kvpilotv1.Veto_VETO_UNSPECIFIED, b.GetVeto() == kvpilotv1.Veto_VETO_UNSPECIFIED; mayA != mayB {
			return cmp.Compare(a.GetVeto(), b.GetVeto())
		}
		return cmp.Compare(a.GetCost(), b.GetCost())
	})
	g := &grid{columns: []column{
		{}, {head: "CANDIDATE"}, {head: "OVERLAP", right: true}, {head: "UNCACHED", right: true, spare: 2}, {head: "PREFILL AHEAD", right: true}, {head: "OWN PREFILL", right: true, spare: 1},
		{head: "FIRST TOKEN", right: true}, {head: "IN FLIGHT", right: true, spare: 3}, {head: "COST", right: true}, {head: "EVENTS", spare: 4},
	}}
	for _, c := range candidates {
		mark, cost := "", fmt.Sprintf("%.4g", c.GetCost())
		if c.GetReplicaId() == d.GetReplicaId() && c.GetRank() == d.GetRank() {
			mark = "▸"
		}
		if c.GetVeto() != kvpilotv1.Veto_VETO_UNSPECIFIED {
			cost = "veto: " + word(c.GetVeto(), "VETO_")
		}
		o := c.GetOverlap()
		g.add(mark, fmt.Sprintf("%s/%d", c.GetReplicaId(), c.GetRank()), overlapText(o), fmt.Sprint(c.GetUncachedTokens()),
			latency(c.GetBacklog().AsDuration()), latency(c.GetPrefill().AsDuration()), latency(c.GetTtft().AsDuration()), fmt.Sprint(c.GetRequests()), cost, word(c.GetFeed(), "FEED_STATE_"))
	}
	return g
}
