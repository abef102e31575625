package decisionlog_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/observe/decisionlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newLog(t *testing.T, c decisionlog.Config) *decisionlog.Log {
	t.Helper()
	return decisionlog.New(c, decisionlog.Params{Lines: jsonLines{}})
}

// jsonLines are the entries in JSON.
type jsonLines struct{}

func (jsonLines) Line(e decisionlog.Entry) json.Marshaler {
	text, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	return json.RawMessage(text)
}

func made(id string, attempt int, request string) *decision.Decision {
	return &decision.Decision{
		Request: decision.Request{ID: id, Attempt: attempt, RequestID: request, Model: "m"},
		Ranks:   decision.Ranks{Candidates: []decision.Candidate{{RankID: decision.RankID{Replica: "a"}, Forecast: decision.Forecast{TTFT: 2}}, {RankID: decision.RankID{Replica: "b"}, Forecast: decision.Forecast{TTFT: 1}}}},
	}
}

func TestDecisionsAreFoundByIDAndByRequest(t *testing.T) {
	l := newLog(t, decisionlog.Config{Size: 8})
	l.Add(made("d1", 0, "req"))
	l.Add(made("d1", 1, "req"))
	l.Add(made("d2", 0, "req"))
	l.Finish(decision.Outcome{ID: "d1", Attempt: 1, CachedTokens: 7})
	l.Finish(decision.Outcome{ID: "d1", Attempt: 1, CachedTokens: 9}) // the first outcome stays
	got := l.Find("d1")
	if len(got) != 2 || got[0].Outcome != nil || got[1].Outcome == nil || got[1].Outcome.CachedTokens != 7 {
		t.Errorf("Find(d1) = %+v", got)
	}
	if got := l.FindRequest("req"); len(got) != 3 || got[2].Decision.ID != "d2" {
		t.Errorf("FindRequest(req) has %d entries, want 3", len(got))
	}
	if got := l.Find("nobody"); got != nil {
		t.Errorf("Find(nobody) = %v, want nothing", got)
	}
	if got := l.Last(2, decisionlog.Filter{}); len(got) != 2 || got[0].Decision.ID != "d2" {
		t.Errorf("Last(2) = %+v", got)
	}
	if got := l.Last(9, decisionlog.Filter{Replica: "b"}); len(got) != 0 {
		t.Errorf("Last(replica b) = %d entries, want none: a was chosen", len(got))
	}
}

// A request that no replica could take does not run for ever: its decision has ended, in the log and in the file.
func TestAListIsFilteredByTenantEndAndSlowness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(t, decisionlog.Config{Size: 20})
		add := func(id, tenant string, dry bool) {
			l.Add(&decision.Decision{
				Request: decision.Request{ID: id, Tenant: tenant},
				At:      time.Now(),
				DryRun:  dry,
				Ranks:   decision.Ranks{Candidates: []decision.Candidate{{RankID: decision.RankID{Replica: "a"}}}},
			})
		}
		add("fast", "x", false)
		l.Finish(decision.Outcome{ID: "fast", End: decision.EndCompleted, TTFT: time.Second, Duration: time.Minute})
		add("slow", "y", false)
		l.Finish(decision.Outcome{ID: "slow", End: decision.EndCompleted, TTFT: 3 * time.Second, Duration: 4 * time.Second})
		add("failed", "x", false)
		l.Finish(decision.Outcome{ID: "failed", End: decision.EndFailed, Duration: time.Second})
		add("mute", "x", false) // has no first token for long
		add("dry", "x", true)
		time.Sleep(5 * time.Second)
		add("running", "y", false)
		for name, test := range map[string]struct {
			filter decisionlog.Filter
			want   string
		}{
			"all":             {decisionlog.Filter{}, "running dry mute failed slow fast"},
			"tenant":          {decisionlog.Filter{Of: "y"}, "running slow"},
			"another's":       {decisionlog.Filter{Own: true, Tenant: "x", Of: "y"}, ""},
			"failed":          {decisionlog.Filter{Ends: []decision.End{decision.EndFailed, decision.EndUnserved}}, "failed"},
			"slow":            {decisionlog.Filter{SlowerThan: 2 * time.Second}, "mute slow"},
			"slow, completed": {decisionlog.Filter{SlowerThan: 2 * time.Second, Ends: []decision.End{decision.EndCompleted}}, "slow"},
		} {
			var got []string
			for _, e := range l.Last(10, test.filter) {
				got = append(got, e.Decision.ID)
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("%s: %v, want %s", name, got, test.want)
			}
		}
	})
}

func TestADecisionWithoutAReplicaHasEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.jsonl")
	l := newLog(t, decisionlog.Config{Size: 8, File: path})
	s := l.Subscribe(decisionlog.Filter{})
	defer s.Close()
	none := made("none", 0, "req")
	none.Chosen = -1
	l.Add(none)
	dry := made("dry", 0, "")
	dry.Chosen, dry.DryRun = -1, true
	l.Add(dry)
	l.Finish(decision.Outcome{ID: "none", End: decision.EndFailed}) // the first outcome stays
	if got := l.Find("none"); len(got) != 1 || got[0].Outcome == nil || got[0].Outcome.End != decision.EndUnserved || got[0].Outcome.CachedTokens != -1 {
		t.Errorf("Find(none) = %+v", got)
	}
	if got := l.Find("dry"); len(got) != 1 || got[0].Outcome != nil {
		t.Errorf("Find(dry) = %+v", got)
	}
	if e := <-s.Entries(); e.Outcome == nil || len(s.Entries()) != 1 {
		t.Errorf("a subscriber gets %+v and %d more", e, len(s.Entries()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if got := lines(t, path); got != 1 {
		t.Errorf("the file has %d lines, want 1", got)
	}
}

func TestTheRingForgetsTheOldestEverywhere(t *testing.T) {
	l := newLog(t, decisionlog.Config{Size: 4})
	for i := range 10 {
		l.Add(made(fmt.Sprint("d", i), 0, fmt.Sprint("r", i%2)))
	}
	for i := range 6 {
		if got := l.Find(fmt.Sprint("d", i)); got != nil {
			t.Errorf("d%d is still found", i)
		}
	}
	if got := l.FindRequest("r1"); len(got) != 2 || got[0].Decision.ID != "d7" || got[1].Decision.ID != "d9" {
		t.Errorf("FindRequest(r1) = %+v", got)
	}
}

func TestASlowSubscriberLosesAndIsTold(t *testing.T) {
	l := newLog(t, decisionlog.Config{Size: 4})
	s := l.Subscribe(decisionlog.Filter{Model: "m"})
	defer s.Close()
	for i := range 300 {
		l.Add(made(fmt.Sprint(i), 0, ""))
	}
	if got := len(s.Entries()); got != 256 || s.Lost() != 44 {
		t.Errorf("queued %d, lost %d; want 256 and 44", got, s.Lost())
	}
	s.Close()
	l.Add(made("x", 0, ""))
	if s.Lost() != 44 {
		t.Error("a closed subscription still receives")
	}
}

func TestRegretIsMeasuredAgainstTheFastestThatCouldServe(t *testing.T) {
	d := made("d", 0, "")
	if got, ok := decisionlog.Regret(d); !ok || got != 1 {
		t.Errorf("Regret() = %v, %v; want 1, true", got, ok)
	}
	d.Candidates[1].Veto = decision.VetoState
	if got, _ := decisionlog.Regret(d); got != 0 {
		t.Errorf("Regret() = %v with the other one vetoed, want 0", got)
	}
}

func TestTheFileHasOneLinePerEndedDecision(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.jsonl")
	synctest.Test(t, func(t *testing.T) {
		l := newLog(t, decisionlog.Config{Size: 8, File: path})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		for i := range 3 {
			id := fmt.Sprint("d", i)
			l.Add(made(id, 0, ""))
			l.Finish(decision.Outcome{ID: id})
			l.Finish(decision.Outcome{ID: id})
		}
		time.Sleep(2 * time.Second)
		if err := os.Rename(path, path+".1"); err != nil { // as logrotate does
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		l.Add(made("after", 0, ""))
		l.Finish(decision.Outcome{ID: "after"})
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
	if got := lines(t, path+".1"); got != 3 {
		t.Errorf("first file has %d lines, want 3", got)
	}
	if got := lines(t, path); got != 1 {
		t.Errorf("second file has %d lines, want 1", got)
	}
}

func TestAFileThatIsTooLargeIsMovedAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.jsonl")
	synctest.Test(t, func(t *testing.T) {
		l := newLog(t, decisionlog.Config{Size: 100, File: path, FileMaxBytes: 20_000})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		for i := range 200 {
			id := fmt.Sprint(i)
			l.Add(made(id, 0, ""))
			l.Finish(decision.Outcome{ID: id})
			time.Sleep(500 * time.Millisecond)
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
	for _, file := range []string{path, path + ".1"} {
		about, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if about.Size() > 25_000 {
			t.Errorf("%s has %d bytes", filepath.Base(file), about.Size())
		}
		if n := lines(t, file); n == 0 && file != path { // the new one may just have begun
			t.Errorf("%s is empty", filepath.Base(file))
		}
	}
}

func TestADiskThatIsFullLosesNothingAtOnce(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("SKIPPED: no /dev/full here")
	}
	dir := t.TempDir()
	path, room := filepath.Join(dir, "decisions.jsonl"), filepath.Join(dir, "room.jsonl")
	if err := os.Symlink("/dev/full", path); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		l := decisionlog.New(decisionlog.Config{Size: 100, File: path}, decisionlog.Params{Lines: jsonLines{}, Scope: scope.New(slog.New(slog.NewTextHandler(&said, nil)), nil, nil)})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		for i := range 20 {
			id := fmt.Sprint(i)
			l.Add(made(id, 0, ""))
			l.Finish(decision.Outcome{ID: id})
			time.Sleep(time.Second)
			if i == 10 { // there is room again; the path is never without a file, which the log would make
				next := path + ".next"
				if err := errors.Join(os.WriteFile(room, nil, 0o600), os.Symlink(room, next), os.Rename(next, path)); err != nil {
					t.Fatal(err)
				}
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if got := lines(t, path); got != 20 {
		t.Errorf("%d lines were written, want all 20", got)
	}
	text := said.String()
	if n := strings.Count(text, "cannot be written"); n != 1 || !strings.Contains(text, "no space left") {
		t.Errorf("the failure is told %d times:\n%s", n, text)
	}
	if !strings.Contains(text, "written again") || !strings.Contains(text, "lost=0") {
		t.Errorf("the recovery is not told:\n%s", text)
	}
}

func TestADirectoryThatIsTakenAwayIsTold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		l := decisionlog.New(decisionlog.Config{Size: 100, File: filepath.Join(dir, "decisions.jsonl")}, decisionlog.Params{Lines: jsonLines{}, Scope: scope.New(slog.New(slog.NewTextHandler(&said, nil)), nil, nil)})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		time.Sleep(2 * time.Second)
		if err := os.Rename(dir, dir+".away"); err != nil { // in one step: the log would make its file again
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if n := strings.Count(said.String(), "cannot be written"); n != 1 {
		t.Errorf("it is told %d times:\n%s", n, said.String())
	}
}

func TestAPathThatCannotBeOpenedRefusesToStart(t *testing.T) {
	l := newLog(t, decisionlog.Config{Size: 1, File: filepath.Join(t.TempDir(), "none", "decisions.jsonl")})
	if err := l.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "open decision log") {
		t.Errorf("Run: %v", err)
	}
}

func lines(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := 0
	for s := bufio.NewScanner(f); s.Scan(); n++ {
		var e decisionlog.Entry
		if err := json.Unmarshal(s.Bytes(), &e); err != nil || e.Outcome == nil {
			t.Errorf("line %d: %v, %+v", n, err, e)
		}
	}
	return n
}

func TestConcurrentUse(t *testing.T) {
	l := newLog(t, decisionlog.Config{Size: 16})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			s := l.Subscribe(decisionlog.Filter{})
			defer s.Close()
			for i := range 200 {
				id := fmt.Sprint(g, "-", i)
				l.Add(made(id, 0, fmt.Sprint(g)))
				l.Finish(decision.Outcome{ID: id})
				l.Find(id)
				l.FindRequest(fmt.Sprint(g))
				l.Last(5, decisionlog.Filter{})
			}
		})
	}
	wg.Wait()
}
