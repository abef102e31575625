package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/cmd/internal/doctor"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// diagnose runs kvpilot doctor and returns its report and its exit code.
func diagnose(t *testing.T, args ...string) (doctor.Report, int) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), append([]string{"doctor", "--json"}, args...), nil, &out, io.Discard)
	var report doctor.Report
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &report); err != nil {
			t.Fatalf("%v: %s", err, out.String())
		}
	}
	var own *exitError
	switch {
	case errors.As(err, &own):
		return report, own.code
	case err != nil:
		return report, 1
	}
	return report, 0
}

func failed(r doctor.Report) (names []string) {
	for _, c := range r.Checks {
		if c.Status == doctor.Fail {
			names = append(names, c.Check)
		}
	}
	return names
}

func TestDoctor(t *testing.T) {
	f := startFleet(t, fleetOptions{})
	settings := []string{"--config", f.file, "--http", f.http, "--grpc", f.grpc, "--admin", f.admin}
	if r, code := diagnose(t, settings...); code != 0 || !r.OK || len(r.Checks) < 20 {
		t.Errorf("code %d: %+v", code, r)
	} else if listen := r.Checks[slices.IndexFunc(r.Checks, func(c doctor.Result) bool { return c.Check == "listen" })]; len(listen.Findings) != 3 ||
		slices.ContainsFunc(listen.Findings, func(f doctor.Finding) bool { return !strings.Contains(f.Seen, "held by a running kvpilot") }) {
		t.Errorf("the router's addresses: %+v", listen)
	}
	f.eventually("the router's view is good", func() bool {
		r, code := diagnose(t, "--server", f.grpc)
		return code == 0 && r.OK
	})
	f.engines[1].SetFaults(enginesim.Faults{Where: enginesim.Where{Paths: []string{"/health"}}, AnswerFaults: enginesim.AnswerFaults{Status: 503}})
	f.eventually("the router sees that a replica is unhealthy", func() bool {
		r, code := diagnose(t, "--server", f.grpc)
		return code == 1 && slices.Equal(failed(r), []string{"replicas"})
	})
	if r, code := diagnose(t, settings...); code != 1 || !slices.Equal(failed(r), []string{"health"}) {
		t.Errorf("code %d: %v", code, failed(r))
	}
}

func TestDoctorWithWrongArguments(t *testing.T) {
	for _, args := range [][]string{{"--no-such-flag"}, {"argument"}, {"--output", "xml"}} {
		var own *exitError
		if err := run(t.Context(), append([]string{"doctor"}, args...), nil, io.Discard, io.Discard); !errors.As(err, &own) || own.code != 2 {
			t.Errorf("%v: %v", args, err)
		}
	}
	if r, code := diagnose(t, "--server", "127.0.0.1:1"); code != 1 || !slices.Equal(failed(r), []string{"router"}) {
		t.Errorf("code %d: %+v", code, r)
	}
}
