package replay

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ScaleRule says how many replicas an autoscaler wants. The zero value is none: all replicas run all the time.
type ScaleRule struct {
	Kind ScaleKind
	// N is the target per replica of ScaleQueue and ScaleRequests, and the number of replicas of ScaleFixed.
	N float64
}

// ScaleKind is the metric of a ScaleRule.
type ScaleKind string

const (
	// ScaleWanted follows kvpilot_pool_wanted_replicas, computed by the product's own code.
	ScaleWanted ScaleKind = "wanted"
	// ScaleQueue has N waiting requests per replica, at engines and at the router.
	ScaleQueue ScaleKind = "queue"
	// ScaleRequests has N requests per replica that run or wait.
	ScaleRequests ScaleKind = "requests"
	// ScaleFixed has N replicas all the time.
	ScaleFixed ScaleKind = "fixed"
)

// ParseScaleRule reads wanted, queue:N, requests:N or fixed:N.
func ParseScaleRule(text string) (ScaleRule, error) {
	kind, number, given := strings.Cut(text, ":")
	r := ScaleRule{Kind: ScaleKind(kind)}
	var err error
	if given {
		r.N, err = strconv.ParseFloat(number, 64)
	}
	if err == nil {
		err = r.check()
	}
	if err != nil || given == (r.Kind == ScaleWanted) {
		return ScaleRule{}, fmt.Errorf("autoscaler %q: must be wanted, or queue, requests or fixed with a number, such as queue:5", text)
	}
	return r, nil
}

var errScaleRule = errors.New("unknown rule, or one with a bad number")

func (r ScaleRule) check() error {
	switch {
	case r == ScaleRule{}, r == ScaleRule{Kind: ScaleWanted}:
		return nil
	case (r.Kind == ScaleQueue || r.Kind == ScaleRequests) && r.N > 0 && !math.IsInf(r.N, 0):
		return nil
	case r.Kind == ScaleFixed && r.N >= 1 && r.N <= 4096 && r.N == math.Trunc(r.N):
		return nil
	}
	return errScaleRule
}

// String gives the rule in the form that ParseScaleRule reads.
func (r ScaleRule) String() string {
	if r.N == 0 {
		return string(r.Kind)
	}
	return string(r.Kind) + ":" + strconv.FormatFloat(r.N, 'g', -1, 64)
}
