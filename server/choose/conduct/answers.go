package conduct

import "time"

const (
	// emptied is the number of empty answers from which a rank is suspected, and manyEmpty the share of its answers that they must be.
	emptied   = 2
	manyEmpty = 0.1
	// answersKept is the number of answers that the shares reach back over.
	answersKept = 16
	// filled is the number of answers with content in succession that clear a rank.
	filled = 3
	// mostlyBlank is the share of answers of at most one token from which a rank is suspected if fewBlank at most of its equals' answers
	// are so short; both are known from leastAnswers on.
	mostlyBlank, fewBlank = 0.6, 0.1
	leastAnswers          = 12
)

// answers counts the answers of a rank by their contents. Its shares fade with each further answer.
type answers struct {
	count        int
	empty, blank float64
	// empties is the number of empty answers since the rank was cleared last, full the number of others since the last empty one.
	empties, full int
}

// fade adds one answer to a share.
func (a *answers) fade(share *float64, yes bool) {
	x := 0.0
	if yes {
		x = 1
	}
	*share += (x - *share) / float64(min(a.count, answersKept))
}

// Emptied notes an answer without a token, where another replica gave one for the same request.
func (r *Rank) Emptied(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := &r.answers
	a.count++
	a.fade(&a.empty, true)
	a.empties++
	a.full = 0
	if r.suspicions&Empty != 0 {
		r.probes.failed()
		r.probes.next(now)
	}
}

// Answered notes a complete answer with something in it: so many tokens, of which limit were allowed (0: unknown).
func (r *Rank) Answered(tokens, limit int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := &r.answers
	a.count++
	a.fade(&a.empty, false)
	a.full++
	if limit != 1 { // an answer of one token is no choice of the rank's then
		a.fade(&a.blank, tokens <= 1)
	}
}

// empty reports whether the answers' emptiness makes the rank suspect; others is the median share of short answers of its equals, below
// zero when it is unknown.
func (a *answers) suspect(already bool, others float64) bool {
	blank := a.count >= leastAnswers && a.blank >= mostlyBlank && others >= 0 && others <= fewBlank
	if already && a.full < filled {
		return true
	}
	if already { // cleared
		a.empties, a.empty = 0, 0
	}
	return blank || a.empties >= emptied && a.empty >= manyEmpty
}

// claims compares a rank's claims about prompts with the cached tokens that its answers show.
type claims struct {
	count          int
	claimed, shown float64
}

const (
	// leastClaims is the number of answers from which claims are compared, claimsKept the number that they reach back over.
	leastClaims, claimsKept = 6, 32
	// proof is the share of its equals' proven share below which the rank's claims are discounted, likeliest the least share that its equals
	// must have: where no answer shows anything as cached, nothing is proven.
	proof, likeliest = 0.5, 0.4
)

// Claimed notes an answer of a request of which the rank claimed to hold so many tokens, and which shows so many as cached.
func (r *Rank) Claimed(held, cached int) {
	if held <= 0 || cached < 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &r.claims
	c.count++
	keep := 1 - 1.0/claimsKept
	c.claimed = keep*c.claimed + float64(held)
	c.shown = keep*c.shown + float64(min(held, cached))
}

// proven is the share of the claims that answers showed; below zero when too few are known.
func (c *claims) proven() float64 {
	if c.count < leastClaims || c.claimed <= 0 {
		return -1
	}
	return c.shown / c.claimed
}
