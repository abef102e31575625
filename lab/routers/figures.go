package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
)

// figures are the results of one run, or the mean of several.
type figures struct {
	counts
	times
	work
	strain
	// Stood is how many turns came later than planned because the answer before them did.
	Stood int       `json:"turns_delayed"`
	Void  []string  `json:"void,omitempty"`
	Told  *forecast `json:"told,omitempty"`
	// PromptError is how far prompts were from the trace's lengths, on average.
	PromptError float64 `json:"prompt_tokens_off"`
}

// counts are numbers of requests.
type counts struct {
	Requests int `json:"requests"` // sent
	Errors   int `json:"errors"`
	// Unfinished had no end when the run was over; they count with the time they had lasted.
	Unfinished int    `json:"unfinished"`
	FirstError string `json:"first_error,omitempty"`
}

// times are the clients' waits.
type times struct {
	TTFT     float64 `json:"ttft_mean_s"`
	TTFTP50  float64 `json:"ttft_p50_s"`
	TTFTP90  float64 `json:"ttft_p90_s"`
	TTFTP99  float64 `json:"ttft_p99_s"`
	TPOT     float64 `json:"tpot_mean_s"`
	TPOTP50  float64 `json:"tpot_p50_s"`
	Whole    float64 `json:"whole_mean_s"`
	WholeP99 float64 `json:"whole_p99_s"`
	// Good is the share of answers within the targets for TTFT and TPOT, Goodput their number per second.
	Good    float64 `json:"good_share"`
	Goodput float64 `json:"goodput_per_s"`
}

// work is the engines' work.
type work struct {
	// Cached is the share of prompt tokens that engines found in their caches, by usage.
	Cached float64 `json:"cached_share"`
	// Shares are the shares of the prompt tokens that each replica computed; Imbalance is the most of them over the mean,
	// each divided by the replica's speed.
	Shares    []float64 `json:"work_shares"`
	Imbalance float64   `json:"imbalance"`
}

// strain is how busy the machine was, and by how much it was late.
type strain struct {
	// Cores are processor cores in use on average.
	RouterCores  float64 `json:"router_cores"`
	SimCores     float64 `json:"simulator_cores"`
	PlayerCores  float64 `json:"player_cores"`
	MachineBusy  float64 `json:"machine_busy_share"`
	PlayerLate   float64 `json:"player_late_p99_s"`
	StepLate     float64 `json:"step_late_mean_s"`
	StepLateMost float64 `json:"step_late_most_s"`
	LateSteps    float64 `json:"late_steps_share"`
	// Slow is the time that engines lost, as a share of the time they modelled.
	Slow float64 `json:"time_lost_share"`
}

// Targets of a good answer at speed 1.
const (
	goodTTFT = 2.0
	goodTPOT = 0.1
)

// summarize reads the clients' side of a run.
func summarize(t *trace, outcomes []outcome) *figures {
	f := &figures{}
	var ttft, tpot, whole, late []float64
	var prompt, cached, off float64
	good := 0
	for i := range outcomes {
		r := &outcomes[i]
		if !r.sent {
			continue
		}
		f.Requests++
		late = append(late, r.late.Seconds())
		if r.waited > 0 {
			f.Stood++
		}
		if r.err != "" {
			f.Errors++
			if f.FirstError == "" {
				f.FirstError = r.err
			}
			continue
		}
		first := r.ttft
		if first == 0 {
			first = r.whole // at least
		}
		ttft = append(ttft, first.Seconds())
		whole = append(whole, r.whole.Seconds())
		if !r.done {
			f.Unfinished++
			continue
		}
		each := 0.0
		if r.output > 1 {
			each = (r.last - r.ttft).Seconds() / float64(r.output-1)
			tpot = append(tpot, each)
		}
		if first.Seconds() <= goodTTFT && each <= goodTPOT {
			good++
		}
		prompt += float64(r.prompt)
		cached += float64(r.cached)
		off += float64(r.prompt - t.Calls[i].In)
	}
	for _, l := range [][]float64{ttft, tpot, whole, late} {
		slices.Sort(l)
	}
	f.TTFT, f.TTFTP50, f.TTFTP90, f.TTFTP99 = mean(ttft), quantile(ttft, 0.5), quantile(ttft, 0.9), quantile(ttft, 0.99)
	f.TPOT, f.TPOTP50 = mean(tpot), quantile(tpot, 0.5)
	f.Whole, f.WholeP99 = mean(whole), quantile(whole, 0.99)
	f.PlayerLate = quantile(late, 0.99)
	if n := len(ttft); n > 0 {
		f.Good = float64(good) / float64(n+f.Errors)
		f.PromptError = off / float64(max(1, n-f.Unfinished))
	}
	f.Goodput = float64(good)
	if prompt > 0 {
		f.Cached = cached / prompt
	}
	return f
}

func mean(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// watcher sees how busy the machine is while a run lasts.
type watcher struct {
	options       *options
	fleet         *fleet
	router        *running
	began         time.Time
	own, sim, rtr time.Duration
	busy, all     time.Duration
}

func watch(o *options, f *fleet, r *running) *watcher {
	w := &watcher{options: o, fleet: f, router: r, own: ownTime(), sim: f.cpu(), rtr: r.cpu(), began: time.Now()}
	w.busy, w.all = machineTime()
	return w
}

// end completes the figures of a run.
func (w *watcher) end(ctx context.Context, f *figures) error {
	took := time.Since(w.began).Seconds()
	f.PlayerCores = (ownTime() - w.own).Seconds() / took
	f.SimCores = (w.fleet.cpu() - w.sim).Seconds() / took
	f.RouterCores = (w.router.cpu() - w.rtr).Seconds() / took
	busy, all := machineTime()
	f.MachineBusy = (busy - w.busy).Seconds() / max((all-w.all).Seconds(), 1e-9)
	f.Goodput /= took
	states, err := w.fleet.states(ctx)
	if err != nil {
		return err
	}
	var steps, lateSteps, late, modelled, lost float64
	for _, s := range states {
		steps += float64(s.Clock.Steps)
		lateSteps += float64(s.Clock.LateSteps)
		late += s.Clock.Late
		lost += s.Clock.Lost
		modelled += s.Clock.Modelled
		f.StepLateMost = max(f.StepLateMost, s.Clock.MostLate)
	}
	if steps > 0 {
		f.StepLate, f.LateSteps, f.Slow = late/steps, lateSteps/steps, lost/modelled
	}
	f.share(w.options, states)
	f.Void = append(f.Void, f.judge(modelled/max(steps, 1))...)
	return nil
}

// share is how much each replica prefilled.
func (w *work) share(o *options, states []rankState) {
	var sum, most, all float64
	for n, s := range states {
		tokens := float64(s.PromptTokens)
		w.Shares = append(w.Shares, tokens)
		sum += tokens
		most = max(most, tokens/o.factor(n))
		all += tokens / o.factor(n)
	}
	for n := range w.Shares {
		w.Shares[n] /= max(sum, 1)
	}
	w.Imbalance = most * float64(len(states)) / max(all, 1)
}

// Bounds beyond which a figure says more about the machine than about the router.
const (
	mostBusy       = 0.92 // of all cores
	mostLost       = 0.01 // of the modelled time
	mostPlayerLate = 0.1  // seconds, 99 of 100 requests; times are taken from when they were really sent
	mostStepLate   = 0.1  // of a mean step
)

// judge says why a run is void: the machine did not keep up. step is the mean modelled time of a step.
func (s *strain) judge(step float64) (reasons []string) {
	void := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	if s.MachineBusy > mostBusy {
		void("the machine was %.0f %% busy", 100*s.MachineBusy)
	}
	if s.Slow > mostLost {
		void("engines lost %.1f %% of their time", 100*s.Slow)
	}
	if s.StepLate > max(mostStepLate*step, 0.0005) {
		void("steps of %.1f ms ended %.2f ms late on average", 1000*step, 1000*s.StepLate)
	}
	if s.PlayerLate > mostPlayerLate {
		void("requests were sent %.0f ms late", 1000*s.PlayerLate)
	}
	if s.RouterCores > 0.9*float64(runtime.NumCPU()) {
		void("the router used %.1f cores", s.RouterCores)
	}
	return reasons
}

// line is the short form of a run.
func (f *figures) line(name string) string {
	s := fmt.Sprintf("%-26s TTFT %6.2f p99 %6.1f  TPOT %3.0f ms  whole %6.2f  cached %4.1f %%  imbalance %.2f  %d sent", name, f.TTFT, f.TTFTP99, 1000*f.TPOTP50, f.Whole, 100*f.Cached, f.Imbalance, f.Requests)
	if f.Errors+f.Unfinished > 0 {
		s += fmt.Sprintf(", %d errors, %d unfinished", f.Errors, f.Unfinished)
	}
	if f.Told != nil {
		s += fmt.Sprintf("  predicted/actual %.2f..%.2f..%.2f", f.Told.RatioP10, f.Told.RatioP50, f.Told.RatioP90)
	}
	if len(f.Void) > 0 {
		s += "  VOID: " + strings.Join(f.Void, ", ")
	}
	return s
}
