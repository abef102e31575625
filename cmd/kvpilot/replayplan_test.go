package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReplayPlan(t *testing.T) {
	picture := filepath.Join(t.TempDir(), "plan.svg")
	var out strings.Builder
	args := "replay --plan --generate decode --requests 40 --replicas 2 --rate 1.5 --share 0.9 --step 0.5 --curve 0 --slo-tpot 30ms --quiet -o json --svg " + picture
	if err := run(t.Context(), strings.Fields(args), nil, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	var plan struct {
		Arrangements []struct{ Roles string }
		Needs        []struct{ Replicas int }
		Seeds        int
		NotLookedAt  []string `json:"not_looked_at"`
	}
	if err := json.Unmarshal([]byte(out.String()), &plan); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if len(plan.Arrangements) != 3 || len(plan.Needs) != 3 || plan.Needs[0].Replicas < 1 || plan.Seeds != 1 || len(plan.NotLookedAt) < 5 {
		t.Errorf("%+v", plan)
	}
	if text, err := os.ReadFile(picture); err != nil || !strings.HasSuffix(string(text), "</svg>\n") {
		t.Errorf("the picture: %v, %.100s", err, text)
	}
	for args, want := range map[string]string{
		"--plan --rate 1,2":      "one --rate",
		"--plan --rate -1":       "above 0",
		"--plan --roles both":    "--roles has no meaning with --plan",
		"--plan --load 0.5":      "--load has no meaning with --plan",
		"--share 0.9":            "--share has a meaning with --plan only",
		"--plan --share 1.5":     "share 1.5",
		"--plan --replicas 5000": "5000 replicas",
	} {
		err := run(t.Context(), strings.Fields("replay --generate decode --requests 10 --quiet "+args), nil, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
