package grpcapi

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// The request headers (and metadata keys) by which a caller takes part in the choice. Lists are
// separated by commas.
const (
	headerObjective = "X-Kvpilot-Objective" // answer, completion, or ttft
	headerPolicy    = "X-Kvpilot-Policy"
	headerWeights   = "X-Kvpilot-Weights" // name=number,...
	headerAllow     = "X-Kvpilot-Allow"
	headerDeny      = "X-Kvpilot-Deny"
	headerPin       = "X-Kvpilot-Pin" // replica, or replica@rank
	headerLease     = "X-Kvpilot-Lease-Ms"
	headerBooking   = "X-Kvpilot-Booking" // reserve, none or dry-run; absent: reserve
	headerExplain   = "X-Kvpilot-Explain"
	headerReports   = "X-Kvpilot-Reports" // all: the first token is reported; end: only the end is; absent: either
	headerPath      = "X-Kvpilot-Path"
	headerTruncated = "X-Body-Truncated"
)

// The headers of the request's own targets, by kvpilot's names and by llm-d's; the first one counts.
func ttftHeaders() []string {
	return []string{"X-Kvpilot-Ttft-Ms", "X-Llm-D-Slo-Ttft-Ms", "X-Slo-Ttft-Ms"}
}

func tpotHeaders() []string {
	return []string{"X-Kvpilot-Tpot-Ms", "X-Llm-D-Slo-Tpot-Ms", "X-Slo-Tpot-Ms"}
}

// maxTargetMS bounds a target.
const maxTargetMS = 3_600_000

const weightTemperature = "temperature"

// errOverrides rejects options that the operator does not allow: without it the answer would be to another question.
func errOverrides() error {
	return apierror.New(apierror.PermissionDenied, "this router does not accept routing options from callers (api.overrides)", nil)
}

// overrides reads the callers' options of the choice.
type overrides struct{ conf *atomic.Pointer[Config] }

// fromHeader reads the options of the choice from the headers.
func (o overrides) fromHeader(h http.Header) (chooser.Options, error) {
	q := chooser.Options{PinnedRank: -1}
	var err error
	if q.Targets.TTFT, err = targetHeader(h, ttftHeaders()); err != nil {
		return q, err
	}
	if q.Targets.TPOT, err = targetHeader(h, tpotHeaders()); err != nil {
		return q, err
	}
	if q.Objective, err = objectiveHeader(h); err != nil {
		return q, err
	}
	policy, weights, pin := firstHeader(h, headerPolicy), firstHeader(h, headerWeights), firstHeader(h, headerPin)
	allow, deny := firstHeader(h, headerAllow), firstHeader(h, headerDeny)
	if q.Objective != decision.ObjectiveTTFT && policy == "" && weights == "" && pin == "" && allow == "" && deny == "" {
		return q, nil
	}
	if !o.conf.Load().Overrides {
		return q, errOverrides()
	}
	q.Policy, q.Allowed, q.Denied = decision.Policy(policy), replicaIDs(listed(allow)), replicaIDs(listed(deny))
	q.Pinned = replica.ID(pin)
	if name, rank, ok := strings.Cut(pin, "@"); ok {
		n, err := strconv.ParseUint(rank, 10, 16)
		if err != nil {
			return q, invalid(headerPin, "the rank after @ must be a number")
		}
		q.Pinned, q.PinnedRank = replica.ID(name), int(n)
	}
	for _, pair := range listed(weights) {
		name, text, _ := strings.Cut(pair, "=")
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			return q, invalid(headerWeights, "each weight must have the form name=number")
		}
		if q.Weights == nil {
			q.Weights = map[string]float64{}
		}
		q.Weights[name] = n
	}
	return q, checkPolicy(q)
}

// objectiveHeader reads the objective of one request. Any caller may let its own answer wait; ttft, which gives less for the answers of
// others, is an override.
func objectiveHeader(h http.Header) (decision.Objective, error) {
	o := decision.Objective(firstHeader(h, headerObjective))
	switch o {
	case "", decision.ObjectiveAnswer, decision.ObjectiveCompletion, decision.ObjectiveTTFT:
		return o, nil
	case decision.ObjectiveSLO:
		return "", invalid(headerObjective, "slo comes with targets: send "+ttftHeaders()[0]+" or "+tpotHeaders()[0])
	}
	return "", invalid(headerObjective, "must be answer, completion or ttft")
}

// targetHeader reads a time from the first of the headers that is there; zero when none is.
func targetHeader(h http.Header, names []string) (time.Duration, error) {
	for _, name := range names {
		text := firstHeader(h, name)
		if text == "" {
			continue
		}
		ms, err := strconv.ParseFloat(text, 64)
		if err != nil || !(ms > 0) || ms > maxTargetMS {
			return 0, invalid(name, "must be a number of milliseconds above 0 and at most 3600000")
		}
		return time.Duration(ms * float64(time.Millisecond)), nil
	}
	return 0, nil
}

// of reads the options of the choice from a typed request.
func (o overrides) of(c *kvpilotv1.Candidates, p *kvpilotv1.PolicyOverride) (chooser.Options, error) {
	q := chooser.Options{PinnedRank: -1}
	if c == nil && p == nil {
		return q, nil
	}
	if !o.conf.Load().Overrides {
		return q, errOverrides()
	}
	q.Policy, q.Objective = decision.Policy(p.GetName()), objectiveOf(p.GetObjective())
	q.Allowed, q.Denied, q.Pinned = replicaIDs(c.GetAllow()), replicaIDs(c.GetDeny()), replica.ID(c.GetPin())
	q.MinRank = int(c.GetMinRank())
	if c != nil && c.MaxRank != nil {
		q.MaxRank = int(c.GetMaxRank())
		if q.MaxRank < q.MinRank {
			return q, invalid("candidates.max_rank", "max_rank is below min_rank")
		}
		if q.MaxRank == 0 { // where the chooser's zero is no bound
			q.MaxRank = -1
		}
	}
	q.Weights = p.GetParams()
	if p != nil && p.Temperature != nil {
		weights := map[string]float64{weightTemperature: p.GetTemperature()}
		for name, n := range q.Weights {
			weights[name] = n
		}
		q.Weights = weights
	}
	return q, checkPolicy(q)
}

// checkPolicy names an unknown policy or number before anything is done.
func checkPolicy(o chooser.Options) error {
	if o.Policy != "" && !o.Policy.Known() {
		return invalid("policy", fmt.Sprintf("unknown policy %.64q; known are %v", o.Policy, decision.Policies()))
	}
	if _, err := selector.Apply(decision.Params{}, o.Weights); err != nil {
		return apierror.New(apierror.InvalidBody, err.Error(), err, apierror.WithParam("policy.params"))
	}
	return nil
}

func firstHeader(h http.Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

func listed(list string) []string {
	var out []string
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

func replicaIDs(names []string) []replica.ID {
	if len(names) == 0 {
		return nil
	}
	list := make([]replica.ID, len(names))
	for i, name := range names {
		list[i] = replica.ID(name)
	}
	return list
}

// flagHeader reads a header that is true, false or absent.
func flagHeader(h http.Header, name string, absent bool) (bool, error) {
	text := firstHeader(h, name)
	if text == "" {
		return absent, nil
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, invalid(name, "must be true or false")
	}
	return v, nil
}

// bookingHeader reads an external proxy's kind of booking.
func bookingHeader(h http.Header) (intake.Booking, error) {
	switch firstHeader(h, headerBooking) {
	case "", "reserve":
		return intake.Reserve, nil
	case "none":
		return intake.BookNothing, nil
	case "dry-run":
		return intake.DryRun, nil
	}
	return intake.DryRun, invalid(headerBooking, "must be reserve, none or dry-run")
}

// leaseHeader reads the lease that an external proxy asks for; zero when it asks for none.
func leaseHeader(h http.Header) (time.Duration, error) {
	text := firstHeader(h, headerLease)
	if text == "" {
		return 0, nil
	}
	ms, err := strconv.ParseUint(text, 10, 32)
	d := time.Duration(ms) * time.Millisecond
	if err != nil || d < minLease || d > maxLease {
		return 0, invalid(headerLease, "must be a number of milliseconds from 100 to 3600000")
	}
	return d, nil
}

// The bounds of a lease, as the contract has them.
const (
	minLease = 100 * time.Millisecond
	maxLease = time.Hour
)
