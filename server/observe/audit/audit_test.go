package audit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/observe/audit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// written runs a Log while do writes events, and returns them as they were written.
func written(t *testing.T, do func(*audit.Log)) []audit.Event {
	t.Helper()
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		l := audit.New(audit.Config{File: "stderr"}, audit.Params{Stderr: &out})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		do(l)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	var list []audit.Event
	for d := json.NewDecoder(&out); d.More(); {
		var e audit.Event
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

func TestAnEventIsOneLine(t *testing.T) {
	who := &caller.Caller{Tenant: "ops", Name: "ci", Roles: caller.Admin, By: caller.ByKey}
	list := written(t, func(l *audit.Log) {
		l.Write(audit.Event{Kind: audit.Drain, Outcome: audit.OK, Address: "10.0.0.1", RequestID: "r-1\n{\"event\":\"register\"}", Target: strings.Repeat("é", 300)}.From(who))
	})
	if len(list) != 1 {
		t.Fatalf("%d events", len(list))
	}
	e := list[0]
	if e.Time.IsZero() || e.Kind != audit.Drain || e.Tenant != "ops" || e.Caller != "ci" || e.By != caller.ByKey || e.Address != "10.0.0.1" || len(e.Target) > 260 || !strings.HasPrefix(e.RequestID, "r-1\n{") {
		t.Errorf("%+v", e)
	}
}

func TestRefusalsAreBounded(t *testing.T) {
	list := written(t, func(l *audit.Log) {
		for range 10_000 {
			l.Write(audit.Event{Kind: audit.Refused, Outcome: "unauthenticated"})
		}
		l.Write(audit.Event{Kind: audit.Drain, Outcome: audit.OK})
		time.Sleep(2 * time.Second)
		l.Write(audit.Event{Kind: audit.Refused, Outcome: "unauthenticated"})
	})
	refused, leftOut, drained := 0, 0, 0
	for _, e := range list {
		switch e.Kind {
		case audit.Refused:
			refused, leftOut = refused+1, leftOut+e.LeftOut
		case audit.Drain:
			drained++
		default:
		}
	}
	if refused != 101 || leftOut != 9900 || drained != 1 {
		t.Errorf("%d refusals with %d left out, %d drains", refused, leftOut, drained)
	}
}

func TestTheSameReadIsWrittenOnceAMinute(t *testing.T) {
	read := audit.Event{Kind: audit.Read, Outcome: audit.OK, Tenant: "ops", Caller: "top", Method: "/x/GetLoads"}
	list := written(t, func(l *audit.Log) {
		for range 90 {
			l.Write(read)
			time.Sleep(time.Second)
		}
		other := read
		other.Caller = "console"
		l.Write(other)
	})
	if len(list) != 3 || list[0].LeftOut != 0 || list[1].LeftOut != 59 || list[2].Caller != "console" {
		t.Errorf("%+v", list)
	}
}

// A disk that takes nothing stops no caller, and what is lost is counted by the journal.
func TestADiskThatTakesNothingStopsNobody(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("needs /dev/full")
	}
	if err := os.Symlink("/dev/full", file); err != nil {
		t.Skip(err)
	}
	l := audit.New(audit.Config{File: file}, audit.Params{})
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	began := time.Now()
	for range 100_000 {
		l.Write(audit.Event{Kind: audit.Drain, Outcome: audit.OK, Target: strings.Repeat("x", 200)})
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("100,000 events took %v", took)
	}
	stop()
	wg.Wait()
}

func TestWithoutAFileNothingIsWritten(t *testing.T) {
	l := audit.New(audit.DefaultConfig(), audit.Params{})
	ctx, stop := context.WithCancel(t.Context())
	stop()
	l.Write(audit.Event{Kind: audit.Drain})
	if err := l.Run(ctx); err != nil {
		t.Error(err)
	}
	(*audit.Log)(nil).Write(audit.Event{})
}
