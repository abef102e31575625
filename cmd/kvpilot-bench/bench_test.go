package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// figures runs a benchmark small, and reads its JSON.
func figures(t *testing.T, into any, args ...string) {
	t.Helper()
	var out, progress bytes.Buffer
	if err := run(t.Context(), append(args, "--json"), nil, &out, &progress); err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	if err := json.Unmarshal(out.Bytes(), into); err != nil {
		t.Fatalf("%v in %s", err, &out)
	}
}

func TestBenchTokenizePrintsItsFigures(t *testing.T) {
	t.Parallel()
	args := []string{"tokenize", "--clients", "4", "--turns", "8", "--tokens", "20000", "--replicas", "2", "--soak", "300", "--pause", "5ms"}
	var r map[string]float64
	figures(t, &r, args...)
	for _, name := range []string{
		"stage_share_of_full", "stage_share_of_full_with_pause", "full_stage_mean_ms", "stage_mean_ms", "turn1_cpu_us", "turn40_cpu_us",
		"turn40_over_turn1_cpu", "exact_hit_us", "exact_hit_encode_us", "exact_hit_read_anew_us", "cache_bytes", "rss_bytes", "cached_token_share_up", "seconds",
	} {
		if r[name] <= 0 {
			t.Errorf("%s = %v, want a positive figure", name, r[name])
		}
	}
	if r["failed_when_down"] != 0 {
		t.Errorf("%v requests failed while the tokenizers were down", r["failed_when_down"])
	}
	if r["cache_bytes"] > r["cache_limit_bytes"] {
		t.Errorf("the cache holds %v bytes, its bound is %v", r["cache_bytes"], r["cache_limit_bytes"])
	}
	if n := r["tokens_at_last_turn"]; n < 18000 || n > 22000 {
		t.Errorf("the last prompt has %v tokens, want about 20000", n)
	}
}

func TestBenchCostPrintsItsFigures(t *testing.T) {
	t.Parallel()
	cases, subjects := []string{"memory", "1k", "32k-shared-90"}, []string{"kvpilot", "kvpilot-events"}
	args := []string{"cost", "--rounds", "1", "--scale", "0.02", "--cases", strings.Join(cases, ","), "--subjects", strings.Join(subjects, ",")}
	var r struct {
		Results []struct {
			Case, Subject string
			CPU           float64 `json:"cpu_us"`
			Resident      int64   `json:"resident_bytes"`
			Peak          int64   `json:"peak_bytes"`
			Requests      int
		}
	}
	figures(t, &r, args...)
	if len(r.Results) != len(cases)*len(subjects) {
		t.Fatalf("%d results: %+v", len(r.Results), r.Results)
	}
	for i, one := range r.Results {
		memory := one.Case == "memory"
		if one.Case != cases[i/len(subjects)] || one.Subject != subjects[i%len(subjects)] || memory == (one.CPU > 0) || memory != (one.Requests > 0) ||
			one.Resident <= 0 || memory != (one.Peak >= one.Resident) {
			t.Errorf("result %d: %+v", i, one)
		}
	}
}

func TestBenchStreamPrintsItsFigures(t *testing.T) {
	t.Parallel()
	cases := []string{"stream-64", "allocs", "small-request", "large-request", "idle", "aborted"}
	if testing.Short() {
		cases = cases[2:] // the streams of the first two last seconds
	}
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			benchStream(t, name)
		})
	}
}

func benchStream(t *testing.T, of string) {
	t.Helper()
	var r struct {
		Results []struct {
			Case, Subject      string
			CPU                float64  `json:"cpu_us"`
			P50                float64  `json:"p50_us"`
			P50Added           float64  `json:"p50_added_us"`
			CPUVsReverse       float64  `json:"cpu_vs_reverseproxy"`
			P50VsReverse       float64  `json:"p50_vs_reverseproxy"`
			P99VsReverse       float64  `json:"p99_vs_reverseproxy"`
			Allocs             *float64 `json:"allocs_per_chunk"`
			Leaked             *int     `json:"leaked"`
			LeakedReservations *int     `json:"leaked_reservations"`
		}
	}
	figures(t, &r, "stream", "--rounds", "1", "--scale", "0.02", "--cases", of)
	seen := map[string]bool{}
	for _, x := range r.Results {
		name, _, _ := strings.Cut(x.Case, "-")
		seen[name+" "+x.Subject] = true
		timed := name == "stream" || name == "small" || name == "large"
		if timed && (x.CPU <= 0 && x.Subject != "direct" || x.P50 <= 0) {
			t.Errorf("%s, %s: %v us of CPU, p50 %v us", x.Case, x.Subject, x.CPU, x.P50)
		}
		if timed && x.Subject == "kvpilot" && (x.P50Added == 0 || x.CPUVsReverse <= 0 || x.P50VsReverse <= 0 || x.P99VsReverse <= 0) {
			t.Errorf("%s is not compared: %+v", x.Case, x)
		}
		if name == "allocs" && x.Allocs == nil {
			t.Errorf("%s: no allocations counted", x.Subject)
		}
		if name == "aborted" && (x.Leaked == nil || x.LeakedReservations == nil || *x.LeakedReservations != 0) {
			t.Errorf("%s: %+v, want leaks counted and no reservation left", x.Subject, x)
		}
	}
	want, _, _ := strings.Cut(of, "-")
	for _, subject := range []string{"reverseproxy", "kvpilot"} {
		if !seen[want+" "+subject] {
			t.Errorf("no result of %s for %s", want, subject)
		}
	}
}
