package replay

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// Goal is the service that an answer must get to count as good, in seconds.
type Goal struct {
	// TTFT bounds the time to the first token, TPOT the mean time of the tokens after it.
	TTFT float64 `json:"ttft_s"`
	TPOT float64 `json:"tpot_s"`
}

// DefaultGoal is what readers of a chat take for fluent.
func DefaultGoal() Goal { return Goal{TTFT: 2, TPOT: 0.1} }

// Numbers are what one run, or several with different seeds, came to. Times are in seconds, from
// the moment at which a request reaches the router.
type Numbers struct {
	Mean float64 `json:"ttft_mean_s"`
	P50  float64 `json:"ttft_p50_s"`
	P90  float64 `json:"ttft_p90_s"`
	P99  float64 `json:"ttft_p99_s"`
	// Answer is the time to the last token.
	AnswerMean float64 `json:"answer_mean_s"`
	AnswerP50  float64 `json:"answer_p50_s"`
	AnswerP99  float64 `json:"answer_p99_s"`
	// TPOT is the mean time per output token after an answer's first one; answers of one token have none.
	TPOTP50 float64 `json:"tpot_p50_s"`
	TPOTP99 float64 `json:"tpot_p99_s"`
	Kept
	// HitRate is the share of prompt tokens found in a cache.
	HitRate float64 `json:"hit_rate"`
	// Imbalance is the busiest replica's prefill time over the mean.
	Imbalance float64 `json:"imbalance"`
	// Work is each speed's share of the computed prompt tokens, where replicas are of unequal speed.
	Work []Work `json:"work,omitempty"`
	// Preemptions is how many times an engine ran out of blocks and put a request back, per request.
	Preemptions float64 `json:"preemptions_per_request"`
	// Predicted is the router's predicted time from its choice to the first token over the actual
	// one; zero for a rule that predicts nothing.
	Predicted Quantiles `json:"predicted_over_actual,omitzero"`
	// DecidedAlone is the share of requests that a router of a fleet with one decider decided itself, without an answer of the decider.
	DecidedAlone float64 `json:"decided_alone,omitempty"`
	// Programs are the figures of a closed loop's sessions.
	Programs *Programs `json:"programs,omitempty"`
	// Chats are the figures of chats next to them.
	Chats *Chats `json:"chats,omitempty"`
	// Abandoned says that the run was abandoned because its mean had passed the limit: Mean is only
	// known to be at least that, and the others are not known.
	Abandoned bool `json:"abandoned,omitempty"`
	// rate is the calls per second while the fleet was full.
	rate float64
}

// Kept is what came of a run: answers that meet the Goal, the longest wait, and requests that were split.
type Kept struct {
	// Goodput is the share of answers that meet the Goal.
	Goodput float64 `json:"goodput"`
	// Longest is the longest time to a first token.
	Longest float64 `json:"ttft_max_s"`
	// Steady is that share of the requests that arrive after the first tenth, in which the fleet fills.
	Steady float64 `json:"goodput_steady"`
	// Split is the share of requests that were split, Moved the mean number of tokens that a read moved, Moving its mean time in seconds.
	Split  float64 `json:"split_share,omitempty"`
	Moved  float64 `json:"moved_tokens,omitempty"`
	Moving float64 `json:"transfer_s,omitempty"`
	// Copies is the number of copies of prompts' beginnings per request.
	Copies float64 `json:"copies_per_request,omitempty"`
	// Scaled is the outcome of the autoscaler; nil without one.
	Scaled *Scaled `json:"autoscaler,omitempty"`
	// late and slow are the requests that missed the goal's two targets, after the first tenth.
	late, slow int
}

// Work is what the replicas of one speed computed.
type Work struct {
	Speed float64 `json:"speed"`
	Share float64 `json:"share"`
}

// Quantiles are three points of a distribution.
type Quantiles struct {
	P10 float64 `json:"p10"`
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
}

// quantilesOf sorts list.
func quantilesOf(list []float64) Quantiles {
	slices.Sort(list)
	return Quantiles{P10: quantile(list, 0.1), P50: quantile(list, 0.5), P90: quantile(list, 0.9)}
}

// quantile reads a sorted list; 0 for an empty one.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func mean(list []float64) float64 {
	var sum float64
	for _, v := range list {
		sum += v
	}
	return sum / float64(max(1, len(list)))
}

// numbers reads the result of a run.
func (s *sim) numbers(goal Goal) Numbers {
	var n Numbers
	var in, cached float64
	ttft := make([]float64, 0, len(s.first))
	answer, tpot := make([]float64, 0, len(s.first)), make([]float64, 0, len(s.first))
	good, steady := 0, 0
	for i, f := range s.first {
		if math.IsNaN(f) {
			continue
		}
		call := &s.trace.Calls[i]
		ttft = append(ttft, f-s.arrived[i])
		in += float64(call.In)
		cached += float64(s.cached[i])
		if math.IsNaN(s.done[i]) {
			continue
		}
		answer = append(answer, s.done[i]-s.arrived[i])
		pace := 0.0
		if call.Out > 1 {
			pace = (s.done[i] - f) / float64(call.Out-1)
			tpot = append(tpot, pace)
		}
		if f-s.arrived[i] <= goal.TTFT && pace <= goal.TPOT {
			good++
			if i >= len(s.first)/10 {
				steady++
			}
		}
	}
	if len(ttft) == 0 {
		return n
	}
	slices.Sort(ttft)
	slices.Sort(answer)
	slices.Sort(tpot)
	n.Mean, n.AnswerMean = mean(ttft), mean(answer)
	n.P50, n.P90, n.P99 = quantile(ttft, 0.5), quantile(ttft, 0.9), quantile(ttft, 0.99)
	n.AnswerP50, n.AnswerP99 = quantile(answer, 0.5), quantile(answer, 0.99)
	n.TPOTP50, n.TPOTP99 = quantile(tpot, 0.5), quantile(tpot, 0.99)
	n.Longest = ttft[len(ttft)-1]
	n.HitRate = cached / in
	n.Goodput = float64(good) / float64(len(s.first)) // a refused request is no good answer
	n.Steady = float64(steady) / float64(len(s.first)-len(s.first)/10)
	n.rate = s.fullRate(in, len(ttft))
	n.late, n.slow = s.misses.late, s.misses.slow
	n.Imbalance = s.imbalance()
	n.Work = s.work()
	n.Programs, n.Chats = s.programs(), s.chats()
	if l := &s.legs; l.splits+l.copies > 0 {
		reads := float64(l.splits + l.copies)
		n.Split, n.Copies, n.Moved, n.Moving = float64(l.splits)/float64(len(ttft)), float64(l.copies)/float64(len(ttft)), l.moved/reads, l.spent/reads
	}
	for _, e := range s.engines {
		n.Preemptions += float64(e.machine.Counts().Preemptions) / float64(len(s.first))
	}
	return n
}

// fullRate is the calls per second while prompt tokens between a tenth and nineteen twentieths of them
// got their first token, so that filling and draining the fleet do not count. in is the prompt tokens of
// calls calls.
func (s *sim) fullRate(in float64, calls int) float64 {
	const from, to = 0.10, 0.95
	order := make([]int, 0, calls)
	for i, f := range s.first {
		if !math.IsNaN(f) {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(s.first[a], s.first[b]) })
	var seen, began, ended float64
	for _, i := range order {
		before := seen
		seen += float64(s.trace.Calls[i].In)
		if before < from*in && seen >= from*in {
			began = s.first[i]
		}
		if before < to*in && seen >= to*in {
			ended = s.first[i]
		}
	}
	if ended <= began {
		return 0
	}
	return (to - from) * float64(calls) / (ended - began)
}

func (s *sim) imbalance() float64 {
	var most, all float64
	for _, e := range s.engines {
		most = max(most, e.busy)
		all += e.busy
	}
	if all == 0 {
		return 0
	}
	return most / (all / float64(len(s.engines)))
}

// work is nil when all replicas are alike.
func (s *sim) work() []Work {
	by, all := map[float64]float64{}, 0.0
	for _, e := range s.engines {
		by[e.speed] += e.computed
		all += e.computed
	}
	if len(by) < 2 || all == 0 {
		return nil
	}
	var list []Work
	for _, speed := range slices.Sorted(maps.Keys(by)) {
		list = append(list, Work{Speed: speed, Share: by[speed] / all})
	}
	return list
}

// add adds a share of other, for means over several runs.
func (n *Numbers) add(other Numbers, share float64) {
	n.Mean += share * other.Mean
	n.late, n.slow = n.late+other.late, n.slow+other.slow
	n.P50 += share * other.P50
	n.P90 += share * other.P90
	n.P99 += share * other.P99
	n.AnswerMean += share * other.AnswerMean
	n.AnswerP50 += share * other.AnswerP50
	n.AnswerP99 += share * other.AnswerP99
	n.TPOTP50 += share * other.TPOTP50
	n.TPOTP99 += share * other.TPOTP99
	n.Goodput += share * other.Goodput
	n.Longest += share * other.Longest
	n.Steady += share * other.Steady
	n.HitRate += share * other.HitRate
	n.Imbalance += share * other.Imbalance
	n.Abandoned = n.Abandoned || other.Abandoned
	n.Preemptions += share * other.Preemptions
	n.DecidedAlone += share * other.DecidedAlone
	n.Split += share * other.Split
	n.Copies += share * other.Copies
	n.Moved += share * other.Moved
	n.Moving += share * other.Moving
	if other.Programs != nil {
		if n.Programs == nil {
			n.Programs = &Programs{}
		}
		n.Programs.add(other.Programs, share)
	}
	if other.Scaled != nil {
		if n.Scaled == nil {
			n.Scaled = &Scaled{}
		}
		n.Scaled.add(other.Scaled, share)
	}
	if other.Chats != nil {
		if n.Chats == nil {
			n.Chats = &Chats{}
		}
		n.Chats.add(other.Chats, share)
	}
	if len(n.Work) < len(other.Work) {
		n.Work = make([]Work, len(other.Work))
	}
	for i, w := range other.Work {
		n.Work[i].Speed = w.Speed
		n.Work[i].Share += share * w.Share
	}
	n.Predicted.P10 += share * other.Predicted.P10
	n.Predicted.P50 += share * other.Predicted.P50
	n.Predicted.P90 += share * other.Predicted.P90
}
