package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// table prints the figures of the rounds.
func (d *demo) table(phases []*phase, took time.Duration) {
	fmt.Fprintln(d.out)
	w := tabwriter.NewWriter(d.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "policy\tTTFT mean\tp50\tp99\twhole answer\tcached tokens\trequests per replica")
	for _, p := range phases {
		var counts []string
		for _, id := range slices.Sorted(maps.Keys(p.PerReplica)) {
			counts = append(counts, fmt.Sprintf("%s %d", id, p.PerReplica[id]))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%.1f %%\t%s\n", p.title, milliseconds(p.MeanTTFT()), milliseconds(p.TTFT(0.5)), milliseconds(p.TTFT(0.99)), milliseconds(p.MeanTotal()), 100*p.CachedShare(), strings.Join(counts, ", "))
	}
	w.Flush() //nolint:errcheck // a terminal that went away gets no table
	fmt.Fprintf(d.out, "\nthe whole demo took %.0f s", took.Seconds())
	if len(d.sims) > 0 {
		fmt.Fprintf(d.out, "; times are the simulated engines', %g times as fast as the model they imitate", d.speed)
	}
	fmt.Fprintln(d.out)
	if late := d.late(); late > tooLate {
		fmt.Fprintf(d.out, "this machine was too busy: %.0f %% of the engines' steps ended late, so the times above are too long, and the ratios uncertain\n", 100*late)
	}
}

// tooLate is the share of late steps above which the demo's times say little.
const tooLate = 0.05

// late is the share of the simulated engines' steps that this machine computed too late.
func (d *demo) late() float64 {
	var steps, late uint64
	for _, r := range d.sims {
		for _, rank := range r.engine.Stats() {
			steps += rank.Clock.Steps
			late += rank.Clock.LateSteps
		}
	}
	return float64(late) / float64(max(1, steps))
}

func milliseconds(t time.Duration) string {
	return fmt.Sprintf("%.0f ms", float64(t)/float64(time.Millisecond))
}

// fleetWait bounds the wait for the replicas: real ones may still be loading their weights.
const fleetWait = 60 * time.Second

// waitForModels waits until the router serves a model from all replicas, and returns its name.
func (d *demo) waitForModels(ctx context.Context, base string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, fleetWait)
	defer cancel()
	want := len(d.sims) + len(d.replicas)
	for {
		model, ready, err := fleetState(ctx, base)
		if err == nil && ready >= want && (model != "" || d.model != "") {
			if d.model != "" {
				model = d.model
			}
			return model, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return "", ctx.Err()
			}
			return "", fmt.Errorf("only %d of %d replicas are ready after %v", ready, want, fleetWait)
		}
	}
}

// fleetState asks the router for its first model and how many replicas are ready.
func fleetState(ctx context.Context, base string) (model string, ready int, err error) {
	var models struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := getJSON(ctx, base+"/v1/models", &models); err != nil {
		return "", 0, err
	}
	if len(models.Data) > 0 {
		model = models.Data[0].ID
	}
	var list struct {
		Replicas []struct {
			State string `json:"state"`
		} `json:"replicas"`
	}
	if err := getJSON(ctx, base+"/kvpilot/v1/replicas", &list); err != nil {
		return "", 0, err
	}
	for _, r := range list.Replicas {
		if r.State == "REPLICA_STATE_READY" {
			ready++
		}
	}
	return model, ready, nil
}

func getJSON(ctx context.Context, url string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: status %d", url, resp.StatusCode)
	}
	return json.NewDecoder(resp.Body).Decode(v)
}

// dialableString turns a wildcard address into one that this machine can dial.
func dialableString(address string) string {
	addr, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return address
	}
	return dialable(addr)
}
