package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// gauge sums a metric of an engine over its series.
func (e *engine) gauge(ctx context.Context, name string) (float64, error) {
	_, text, err := call(ctx, http.MethodGet, e.url()+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		f := strings.Fields(line)
		v, err := strconv.ParseFloat(f[len(f)-1], 64)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

// counter reads a metric of the router, summed over the series that have the label.
func (p *routerProcess) counter(ctx context.Context, name, label string) (float64, error) {
	_, text, err := call(ctx, http.MethodGet, "http://"+p.admin+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, name) && strings.Contains(line, label) {
			f := strings.Fields(line)
			v, err := strconv.ParseFloat(f[len(f)-1], 64)
			if err != nil {
				return 0, err
			}
			sum += v
		}
	}
	return sum, nil
}

// longestLease bounds the time for which an engine keeps blocks that nothing reads.
const longestLease = 45 * time.Second

// unpinned waits until no engine has blocks in use: what was pinned for others is back.
func (s *splits) unpinned(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	for {
		used := map[string]float64{}
		for _, e := range s.engines {
			if e.process == nil {
				continue
			}
			v, err := e.gauge(ctx, "vllm:kv_cache_usage_perc")
			if err != nil {
				return 0, err
			}
			if v > 0 {
				used[e.id] = v
			}
		}
		if len(used) == 0 {
			return time.Since(began), nil
		}
		if time.Since(began) > longestLease {
			return 0, fmt.Errorf("after %s, shares of caches are in use by nothing: %v", longestLease, used)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// hits are the tokens that the engines have read from each other.
func (s *splits) hits(ctx context.Context) (float64, error) {
	sum := 0.0
	for _, e := range s.engines {
		v, err := e.gauge(ctx, "vllm:external_prefix_cache_hits_total")
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

// found is how many cached tokens the engine that computed the prompt found, or -1 where the counts differ. The client's count is the same, except
// for Mooncake: an engine that reads a cache counts all of it.
func (s *splits) found(a *answered, d *kvpilotv1.Decision) int {
	if s.connector != mooncake || a.prefill == "" {
		return a.cached
	}
	if a.cached != a.prompt {
		return -1
	}
	return int(d.GetOutcome().GetCachedTokens())
}

// decided is the last record of a request that has ended, and could be split.
func (p *routerProcess) decided(ctx context.Context, id string) (*kvpilotv1.Decision, error) {
	d, err := p.ended(ctx, id)
	if err == nil && len(d.GetWays()) == 0 {
		err = fmt.Errorf("the decision of %s has no ways: %v", id, d)
	}
	return d, err
}

// ended is the last record of a request that has ended.
func (p *routerProcess) ended(ctx context.Context, id string) (*kvpilotv1.Decision, error) {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		list, err := p.api.Explain(ctx, id)
		if err == nil && len(list) > 0 && list[len(list)-1].GetOutcome() != nil {
			return list[len(list)-1], nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("no ended decision of %s: %v %w", id, list, errorOr(err))
		}
	}
}
