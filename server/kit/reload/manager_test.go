package reload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tree is the settings of these tests: two parts that take changes, and one that needs a restart.
type tree struct{ A, B, Fixed string }

// bench is a Manager whose parts can be made to fail.
type bench struct {
	*Manager[tree]
	mu    sync.Mutex
	next  Loaded[tree]
	load  error
	in    map[string]string // what each part runs with
	calls []string
	fails map[string]bool // "a=2"
}

// part takes the setting of its name.
type part struct {
	*bench
	name string
	get  func(tree) string
}

func (p part) Check(_, next tree) error {
	if p.get(next) == "bad" {
		return fmt.Errorf("%s: is bad", p.name)
	}
	return nil
}

func (p part) Apply(_, next tree) error {
	call := p.name + "=" + p.get(next)
	p.calls = append(p.calls, call)
	if p.fails[call] {
		return fmt.Errorf("%s fails", call)
	}
	p.in[p.name] = p.get(next)
	return nil
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{in: map[string]string{"a": "1", "b": "1"}, fails: map[string]bool{}}
	first := Loaded[tree]{Config: tree{"1", "1", "1"}, Text: []byte("a: 1\nb: 1\n")}
	b.next = first
	b.Manager = New(first, Params[tree]{
		Source: b,
		Sections: []Section[tree]{
			{Name: "a", Paths: []string{"a"}, Part: part{b, "a", func(c tree) string { return c.A }}},
			{Name: "b", Paths: []string{"b"}, Part: part{b, "b", func(c tree) string { return c.B }}},
		},
		Keep: 3,
	})
	return b
}

func (b *bench) Load() (Loaded[tree], error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next, b.load
}

func (*bench) Files(tree) map[string]string { return nil }
func (*bench) Merge(now, next tree) tree    { return tree{next.A, next.B, now.Fixed} }
func (*bench) Hash(c tree) string           { return fmt.Sprint(c) }

func (*bench) Diff(now, next tree) []Change {
	var list []Change
	for _, s := range []struct {
		path, old, new string
		restart        bool
	}{{"a", now.A, next.A, false}, {"b", now.B, next.B, false}, {"fixed", now.Fixed, next.Fixed, true}} {
		if s.old != s.new {
			list = append(list, Change{s.path, s.old, s.new, s.restart})
		}
	}
	return list
}

func (b *bench) want(t *testing.T, a, bb string) {
	t.Helper()
	if b.in["a"] != a || b.in["b"] != bb {
		t.Errorf("the parts run with %v, want a=%s b=%s", b.in, a, bb)
	}
	if c := b.Config(); c.A != a || c.B != bb {
		t.Errorf("in force is %v, want a=%s b=%s", c, a, bb)
	}
}

func (b *bench) reload(c tree) (Result, error) {
	b.next = Loaded[tree]{Config: c, Text: []byte(fmt.Sprintf("a: %s\nb: %s\nfixed: %s\n", c.A, c.B, c.Fixed))}
	return b.Reload(context.Background(), Request{Origin: OriginCall, Who: "me"})
}

func TestAReloadAppliesWhatNeedsNoRestartAndSaysWhatDoes(t *testing.T) {
	b := newBench(t)
	r, err := b.reload(tree{"2", "1", "2"})
	if err != nil || r.Version.Number != 2 || len(r.Changes) != 2 || len(r.Waiting()) != 1 || r.Waiting()[0].Path != "fixed" {
		t.Fatalf("%+v, %v", r, err)
	}
	b.want(t, "2", "1")
	if b.Config().Fixed != "1" || !slices.Equal(b.calls, []string{"a=2"}) {
		t.Errorf("in force %v, calls %v: what needs a restart stays, and parts without a change are left alone", b.Config(), b.calls)
	}
	// It still waits for the restart.
	if r, err = b.reload(tree{"2", "1", "2"}); err != nil || len(r.Waiting()) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestWrongSettingsAreRefusedWhole(t *testing.T) {
	b := newBench(t)
	_, err := b.reload(tree{"bad", "bad", "1"})
	var refused *Refused
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "a: is bad") || !strings.Contains(err.Error(), "b: is bad") {
		t.Errorf("error %v, want one that names both", err)
	}
	b.load = errors.New("line 3")
	if _, err = b.reload(tree{"2", "2", "1"}); !errors.As(err, &refused) {
		t.Errorf("error %v", err)
	}
	b.want(t, "1", "1")
	if len(b.calls) != 0 || len(b.Versions()) != 1 {
		t.Errorf("calls %v, versions %v", b.calls, b.Versions())
	}
}

func TestWhenOnePartCannotApplyAllGoBack(t *testing.T) {
	b := newBench(t)
	b.fails["b=2"] = true
	_, err := b.reload(tree{"2", "2", "1"})
	var failed *failed
	if !errors.As(err, &failed) || failed.Section != "b" || failed.Stuck != nil {
		t.Errorf("error %v", err)
	}
	b.want(t, "1", "1")
	b.fails["a=1"] = true
	if _, err = b.reload(tree{"2", "2", "1"}); !errors.As(err, &failed) || failed.Stuck == nil || !strings.Contains(err.Error(), "restart") {
		t.Errorf("error %v, want one that says that a could not go back", err)
	}
}

func TestADryRunChangesNothing(t *testing.T) {
	b := newBench(t)
	b.next.Config = tree{"2", "2", "2"}
	r, err := b.Reload(context.Background(), Request{DryRun: true})
	if err != nil || len(r.Changes) != 3 || !r.Unchanged || len(b.Versions()) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	b.want(t, "1", "1")
}

func TestARollbackIsAVersionOfItsOwn(t *testing.T) {
	b := newBench(t)
	for _, a := range []string{"2", "3"} {
		if _, err := b.reload(tree{a, "1", "1"}); err != nil {
			t.Fatal(err)
		}
	}
	r, err := b.Rollback(context.Background(), 2, Request{Who: "me"})
	if err != nil || r.Version.Number != 4 || r.Version.RollbackOf != 2 || r.Version.Origin != OriginRollback {
		t.Fatalf("%+v, %v", r, err)
	}
	b.want(t, "2", "1")
	if v := b.Versions(); len(v) != 3 || v[0].Number != 4 || v[2].Number != 2 {
		t.Errorf("versions %+v, want the last three, latest first", v)
	}
	if _, err := b.Rollback(context.Background(), 1, Request{}); !errors.Is(err, ErrNoVersion) || !strings.Contains(err.Error(), "2 to 4") {
		t.Errorf("error %v, want one that says which versions there are", err)
	}
}

func TestFilesThatAreCutShortAreNotTaken(t *testing.T) {
	for name, c := range map[string]struct {
		origin Origin
		text   string
		taken  bool
	}{
		"the beginning, by the watch": {OriginFile, "a: 1\n", false},
		"the beginning, asked for":    {OriginCall, "a: 1\n", true},
		"nothing, by the watch":       {OriginFile, "", false},
		"nothing, asked for":          {OriginCall, " \n", false},
		"something else":              {OriginFile, "b: 1\n", true},
		"without its end":             {OriginCall, "a: 2\nb: 1", false},
		"less white space":            {OriginFile, "a: 2\nb: 1\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.next = Loaded[tree]{Config: tree{"2", "1", "1"}, Text: []byte(c.text)}
			_, err := b.Reload(context.Background(), Request{Origin: c.origin})
			if taken := err == nil; taken != c.taken {
				t.Errorf("error %v, want taken %t", err, c.taken)
			}
		})
	}
}

func TestAFileThatChangedIsNamed(t *testing.T) {
	b := newBench(t)
	b.now.Files = map[string]string{"a.keys_file": "x"}
	b.next.Files = map[string]string{"a.keys_file": "y"}
	r, err := b.Reload(context.Background(), Request{})
	if err != nil || len(r.Changes) != 1 || r.Changes[0].Path != "a.keys_file" || !slices.Equal(b.calls, []string{"a=1"}) {
		t.Errorf("%+v, %v, calls %v", r, err, b.calls)
	}
}

func TestTwoAtOnceAndTheEnd(t *testing.T) {
	b := newBench(t)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			b.mu.Lock()
			b.next = Loaded[tree]{Config: tree{fmt.Sprint(i), fmt.Sprint(i), "1"}, Text: []byte(fmt.Sprintf("%d is the text\n", i))}
			b.mu.Unlock()
			if _, err := b.Reload(context.Background(), Request{}); err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
			b.Versions()
			if i == 15 {
				b.Close()
			}
		})
	}
	wg.Wait()
	if c := b.Config(); c.A != c.B || c.A != b.in["a"] || c.B != b.in["b"] {
		t.Errorf("in force %v, the parts run with %v", c, b.in)
	}
	if _, err := b.Reload(context.Background(), Request{}); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v", err)
	}
	if _, err := b.Rollback(context.Background(), 1, Request{}); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v", err)
	}
}

func TestTheWatchWaitsUntilAFileIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		text, acts := "old", 0
		write := func(s string) { mu.Lock(); text = s; mu.Unlock() }
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			Watch(ctx, time.Second, "old", func() string { mu.Lock(); defer mu.Unlock(); return text }, func() { mu.Lock(); acts++; mu.Unlock() })
		}()
		step := func(want int) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if acts != want {
				t.Errorf("%d reloads, want %d", acts, want)
			}
		}
		step(0)
		write("n")
		step(0)
		write("ne")
		step(0)
		write("new")
		step(0)
		step(1)
		step(1)
		cancel()
		<-done
	})
}
