package decision

// Ranks are the candidates of a decision, and its pick. They are listed as Candidates or kept packed.
type Ranks struct {
	// Candidates holds one entry per rank of the pool, vetoed ones included. The record of a choice among more than 64 ranks lists the important ones, unless
	// it was made to be read (a dry run, explain): the pick, the 32 cheapest, the 16 that hold most of
	// the prompt, the fastest, the ranks that the policy remembers, the cheapest of another replica, and one of each veto. Of another
	// router's decision it lists the pick. It is nil where they are packed, as in most records: List returns them in either form.
	Candidates []Candidate
	packed     *packed
	// Others counts the ranks that could serve and are not among Candidates. All were priced; where this router decided, none costs
	// less than the 32 cheapest. VetoedOthers counts such ranks that could not serve.
	Others, VetoedOthers int
	// Elsewhere reports, of another router's decision, whether another replica could have been chosen; HasOtherReplica reports it of any.
	Elsewhere bool
	// Chosen is the index of the chosen candidate, -1 when there is none.
	Chosen int
}

// Pick returns the chosen candidate, or nil.
func (r *Ranks) Pick() *Candidate {
	if r.Chosen < 0 || r.Chosen >= r.Listed() {
		return nil
	}
	if p := r.compact(); p != nil {
		return &p.pick
	}
	return &r.Candidates[r.Chosen]
}

// compact are the packed candidates; nil when Candidates has them.
func (r *Ranks) compact() *packed {
	if r.Candidates != nil {
		return nil
	}
	return r.packed
}

// List returns Candidates, or a copy of them where they are packed. It must not be changed.
func (r *Ranks) List() []Candidate {
	if p := r.compact(); p != nil {
		return p.list()
	}
	return r.Candidates
}

// Listed is how many candidates List has.
func (r *Ranks) Listed() int {
	if p := r.compact(); p != nil {
		return len(p.names)
	}
	return len(r.Candidates)
}

// summary is of those listed.
func (r *Ranks) summary() summary {
	if p := r.compact(); p != nil {
		return p.summary
	}
	var s summary
	pick := r.Pick()
	for i := range r.Candidates {
		s.add(&r.Candidates[i], pick)
	}
	return s
}

// Fastest is the lowest predicted time to the first token of those listed that could be chosen; 0 when none was predicted.
func (r *Ranks) Fastest() float64 { return r.summary().fastest }

// BestOverlap is the longest overlap of those listed, in tokens.
func (r *Ranks) BestOverlap() int { return int(r.summary().overlap) }

// Servers is how many of those listed could be chosen.
func (r *Ranks) Servers() int { return r.summary().servers }

// HasOtherReplica reports whether a rank of another replica could have been chosen.
func (r *Ranks) HasOtherReplica() bool {
	return r.Pick() != nil && (r.Elsewhere || r.summary().elsewhere)
}
