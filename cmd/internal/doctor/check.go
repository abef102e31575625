package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Status is how a check ended for one subject.
type Status string

// The statuses, from the best to the worst.
const (
	// OK: as expected.
	OK Status = "ok"
	// Skip: not tested; Seen says why.
	Skip Status = "skip"
	// Warn: it works, and worse than it could.
	Warn Status = "warn"
	// Fail: it does not work.
	Fail Status = "fail"
)

// order ranks the statuses.
func (s Status) order() int { return slices.Index([]Status{OK, Skip, Warn, Fail}, s) }

// Finding is the result of a check about one subject.
type Finding struct {
	// Subject is a replica's id, REPLICA/RANK, or a setting; empty for the router itself.
	Subject string `json:"subject,omitempty"`
	Status  Status `json:"status"`
	// Expected is empty when Seen is as expected.
	Expected string `json:"expected,omitempty"`
	Seen     string `json:"seen"`
	// Change is what to do about a warning or a failure.
	Change string `json:"change,omitempty"`

	// blocked names the check that failed, where the subject was skipped because this check needs it.
	blocked string
}

func ok(subject, seen string, args ...any) Finding {
	return Finding{Subject: subject, Status: OK, Seen: fmt.Sprintf(seen, args...)}
}

func skip(subject, why string, args ...any) Finding {
	return Finding{Subject: subject, Status: Skip, Seen: fmt.Sprintf(why, args...)}
}

// blockedBy is a subject that is not tested because of another check.
func blockedBy(subject, check string) Finding {
	return Finding{Subject: subject, Status: Skip, Seen: "not tested: see " + check, blocked: check}
}

// fault is a failure or a warning in full.
func fault(status Status, subject, expected, seen, change string) []Finding {
	return []Finding{{Subject: subject, Status: status, Expected: expected, Seen: seen, Change: change}}
}

// Result is a check that has run.
type Result struct {
	Check string `json:"check"`
	// What has the question that the check answers.
	What     string    `json:"what"`
	Status   Status    `json:"status"`
	Findings []Finding `json:"findings"`
	TookMS   int64     `json:"took_ms"`
}

// check is one question about a set-up.
type check struct {
	name, what string
	// needs names checks that come first. Subjects that failed there are skipped, all when the failure has no subject.
	needs []string
	// after names checks that come first and decide nothing.
	after []string
	run   func(ctx context.Context, in scope) []Finding
}

// scope has the parts that a check may look at.
type scope struct {
	*setup
	// lost names the check that a subject failed in; "" stands for all subjects.
	lost map[string]string
}

// examine runs all checks, each within limit, and returns their results in the order of the checks.
func examine(ctx context.Context, s *setup, checks []check, limit time.Duration) []Result {
	results := make([]Result, len(checks))
	done := map[string]chan struct{}{}
	at := map[string]int{}
	for i, c := range checks {
		done[c.name], at[c.name] = make(chan struct{}), i
	}
	var running sync.WaitGroup
	for i, c := range checks {
		running.Go(func() {
			defer close(done[c.name])
			in := scope{s, map[string]string{}}
			for _, need := range c.needs {
				<-done[need]
				results[at[need]].addLost(in.lost)
			}
			for _, other := range c.after {
				<-done[other]
			}
			results[i] = c.once(ctx, in, limit)
		})
	}
	running.Wait()
	return results
}

// addLost adds the subjects that others cannot test any more.
func (r *Result) addLost(to map[string]string) {
	for _, f := range r.Findings {
		if f.Status != Fail && f.blocked == "" {
			continue
		}
		if _, known := to[f.Subject]; !known {
			to[f.Subject] = cmp.Or(f.blocked, r.Check)
		}
	}
}

func (c check) once(ctx context.Context, in scope, limit time.Duration) Result {
	began := time.Now()
	r := Result{Check: c.name, What: c.what, Status: OK}
	if why, all := in.lost[""]; all {
		r.Findings = []Finding{blockedBy("", why)}
	} else {
		bounded, cancel := context.WithTimeout(ctx, limit)
		r.Findings = c.run(bounded, in)
		cancel()
	}
	for _, f := range r.Findings {
		if f.Status.order() > r.Status.order() {
			r.Status = f.Status
		}
	}
	r.TookMS = time.Since(began).Milliseconds()
	return r
}

// Failed reports whether any check failed.
func Failed(results []Result) bool {
	return slices.ContainsFunc(results, func(r Result) bool { return r.Status == Fail })
}
