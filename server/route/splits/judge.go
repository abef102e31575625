package splits

import (
	"fmt"
	"math"
)

// The rule of stepping back. A side is compared with the baseline over a round, in which each session counts once on its side, so that the
// samples are independent. Looks are made when the side has the least number of sessions, and at each doubling; after five looks at each side a
// round ends and all sides begin at zero, so that a side that becomes worse later is found, too. At a look a side is clearly worse when one of
// these holds:
//
//   - it fails more: by minMore of its requests at least, and chance alone would give as many failures in one of chances looks (Fisher's
//     exact test);
//   - its first tokens, or its whole answers, take longer by more than a fifth: were they longer by just that, chance alone would order
//     both sides' times so in one of chances looks (the rank test of Mann and Whitney).
const (
	looks   = 5
	minMore = 0.02
	// slower is how many buckets lie between a time and one that is a fifth longer.
	slower = 2
	// chances is how rarely chance makes one test of one look step a side back. sigmas is the same for the rank test.
	chances = 1 / 30_000.0
	sigmas  = 4.0
	// roundSessions bounds the sessions of a round, on all sides.
	roundSessions = 1 << 16
)

// verdict says why a side is clearly worse than the baseline; empty when it is not.
func verdict(base, side *sample) string {
	if base.requests == 0 || side.requests == 0 {
		return ""
	}
	failsHere, failsThere := float64(side.failed)/float64(side.requests), float64(base.failed)/float64(base.requests)
	if failsHere-failsThere >= minMore && fisher(side.failed, side.requests, base.failed, base.requests) < chances {
		return fmt.Sprintf("%d of %d requests failed, %d of %d of the baseline's", side.failed, side.requests, base.failed, base.requests)
	}
	for _, of := range []struct {
		what       string
		here, base *times
	}{{"first tokens", &side.first, &base.first}, {"whole answers", &side.whole, &base.whole}} {
		if later(of.here, of.base) >= sigmas {
			here, there := of.here.quantile(.5).Seconds(), of.base.quantile(.5).Seconds()
			return fmt.Sprintf("%s take %.3g s (median of %d), the baseline's %.3g s (of %d)", of.what, here, of.here.seen, there, of.base.seen)
		}
	}
	return ""
}

// fisher is the probability that so many of the failures of both sides, or more, fall on a side by chance.
func fisher(failed, of, baseFailed, baseOf uint32) float64 {
	all, bad := float64(of)+float64(baseOf), float64(failed)+float64(baseFailed)
	total := logChoose(all, float64(of))
	sum := 0.0
	for k := float64(failed); k <= min(bad, float64(of)); k++ {
		sum += math.Exp(logChoose(bad, k) + logChoose(all-bad, float64(of)-k) - total)
	}
	return min(1, sum)
}

func logChoose(n, k float64) float64 {
	if k < 0 || k > n {
		return math.Inf(-1)
	}
	a, _ := math.Lgamma(n + 1)
	b, _ := math.Lgamma(k + 1)
	c, _ := math.Lgamma(n - k + 1)
	return a - b - c
}

// later is by how many standard deviations the times of one side are later than the base's would be if they took a fifth longer, by
// their ranks.
func later(side, base *times) float64 {
	n, m := float64(side.seen), float64(base.seen)
	if n == 0 || m == 0 {
		return 0
	}
	// u counts the pairs in which the side's time is the later one; pairs in one bucket count half.
	u, below, ties := 0.0, 0.0, 0.0
	for i := range buckets + slower {
		here, there := 0.0, 0.0
		if i < buckets {
			here = float64(side.counts[i])
		}
		if i >= slower {
			there = float64(base.counts[i-slower])
		}
		u += here * (below + there/2)
		below += there
		t := here + there
		ties += t * (t*t - 1)
	}
	all := n + m
	variance := n * m / 12 * (all + 1 - ties/(all*(all-1)))
	if variance <= 0 {
		return 0
	}
	return (u - n*m/2) / math.Sqrt(variance)
}
