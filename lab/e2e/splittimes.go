package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// outcomes are the answers to requests, in their order.
type outcomes struct {
	got    []answered
	failed []error
}

// all sends requests, so many at once; ended is called after each.
func (s *splits) all(ctx context.Context, list []*shared, atOnce int, ended func(n int), header ...string) *outcomes {
	o := &outcomes{got: make([]answered, len(list)), failed: make([]error, len(list))}
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	var mu sync.Mutex
	count := 0
	for i, r := range list {
		slots <- struct{}{}
		wg.Go(func() {
			o.got[i], o.failed[i] = s.ask(ctx, s.router.url(), r, i%4 < 2, nil, header...)
			<-slots
			if ended != nil {
				mu.Lock()
				count++
				n := count
				mu.Unlock()
				ended(n)
			}
		})
	}
	wg.Wait()
	return o
}

// slowest is the longest time of an answer.
func (o *outcomes) slowest() time.Duration {
	most := time.Duration(0)
	for i := range o.got {
		most = max(most, o.got[i].took)
	}
	return most
}

// judge wants each answer whole and right, and counts those that were not split.
func (o *outcomes) judge(list []*shared) (whole int, err error) {
	var lost, wrong []string
	for i, r := range list {
		a := &o.got[i]
		switch {
		case o.failed[i] != nil:
			lost = append(lost, fmt.Sprintf("%d (%s, %s, after %.1f s): %v", i, a.prefill, a.replica, a.took.Seconds(), o.failed[i]))
		case a.text != r.want:
			wrong = append(wrong, fmt.Sprintf("%d (%s, %s): %q, want %q", i, a.prefill, a.replica, a.text, r.want))
		case a.prefill == "":
			whole++
		}
	}
	if len(lost)+len(wrong) > 0 {
		return whole, fmt.Errorf("of %d requests %d were lost: %s; %d have a wrong text: %s", len(list), len(lost), strings.Join(lost[:min(3, len(lost))], "; "), len(wrong), strings.Join(wrong[:min(3, len(wrong))], "; "))
	}
	return whole, nil
}

// What checkTimes wants of predicted over actual times, in the middle, as far as the machine is quiet: where a tenth of the times is more
// than transfersNoise times the middle one, they show its other work and are not judged.
const (
	transfersLow, transfersHigh = 0.8, 1.25
	transfersNoise              = 2
	transfersTaught             = 50
)

// checkTimes: after a number of transfers the router predicts how long they take.
func (s *splits) checkTimes(ctx context.Context) (string, error) {
	var ratios, times, moves, rests []float64
	for i := range transfersTaught + 50 {
		r := &shared{path: "/v1/completions", body: object{"model": "tiny", "prompt": s.prompt(4000+i, 100+i%8*80), "max_tokens": 4, "temperature": 0}}
		trace := fmt.Sprintf("%016x%016x", time.Now().UnixNano(), i+1)
		id := fmt.Sprintf("time-%d-%d", s.nonce, i)
		a, err := s.ask(ctx, s.router.url(), r, true, nil, "X-Request-Id", id, "Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
		if err != nil {
			return "", err
		}
		if a.prefill == "" || i < transfersTaught {
			continue
		}
		d, err := s.router.decided(ctx, id)
		if err != nil {
			return "", err
		}
		wait, cancel := context.WithTimeout(ctx, 10*time.Second)
		list, found := s.spans.wait(wait, trace, "kvpilot.transfer")
		cancel()
		if !found {
			return "", fmt.Errorf("no span of the transfer of request %d: %v", i, list)
		}
		at := slices.IndexFunc(list, func(one span) bool { return one.name == "kvpilot.transfer" })
		took := list[at].took.Seconds()
		move, rest := d.GetWays()[0].GetTransfer().AsDuration().Seconds(), stepAfter(d)
		ratios, times = append(ratios, (move+rest)/took), append(times, took)
		moves, rests = append(moves, move), append(rests, rest)
	}
	if len(ratios) < 40 {
		return "", fmt.Errorf("only %d of 50 were split", len(ratios))
	}
	slices.Sort(ratios)
	slices.Sort(times)
	slices.Sort(moves)
	slices.Sort(rests)
	at := func(list []float64, q float64) float64 { return list[int(q*float64(len(list)-1))] }
	detail := fmt.Sprintf("%d transfers of 200 to 1,400 tokens, first token after p50 %.0f ms, p90 %.0f ms, predicted p50 %.0f ms and %.0f ms for the step; predicted / actual p10 %.2f, p50 %.2f, p90 %.2f",
		len(ratios), 1e3*at(times, 0.5), 1e3*at(times, 0.9), 1e3*at(moves, 0.5), 1e3*at(rests, 0.5), at(ratios, 0.1), at(ratios, 0.5), at(ratios, 0.9))
	if at(times, 0.9) > transfersNoise*at(times, 0.5) {
		return detail + "; the machine is too busy to judge that", nil
	}
	if p50 := at(ratios, 0.5); p50 < transfersLow || p50 > transfersHigh {
		return "", fmt.Errorf("%s; want p50 %.2f to %.2f", detail, transfersLow, transfersHigh)
	}
	return detail, nil
}

// stepAfter is the predicted time in seconds from the end of the transfer to the first token.
func stepAfter(d *kvpilotv1.Decision) float64 {
	w := d.GetWays()[0]
	for _, c := range d.GetCandidates() {
		if c.GetReplicaId() == w.GetDecodeReplicaId() {
			step := c.GetTtft().AsDuration() - c.GetBacklog().AsDuration() - c.GetPlanned().AsDuration()
			return step.Seconds() - c.GetPrefill().AsDuration().Seconds()*(1+c.GetSlowdown())
		}
	}
	return 0
}
