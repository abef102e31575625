package directory_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/directory"
	"github.com/kvpilot/kvpilot/server/fleet/directory/directorytest"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onGPU is an index in which one rank holds so many blocks of every prompt.
type onGPU uint32

func (n onGPU) Match(dst []kvindex.Overlap, _ []blockhash.Hash) []kvindex.Overlap {
	return append(dst, kvindex.Overlap{Slot: 9, GPU: uint32(n), CPU: 1000})
}

// service serves handler and returns a directory that asks it.
func service(t *testing.T, handler http.Handler, change func(*directory.Config)) *directory.Directory {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return asking(t, s.URL, change)
}

// patient is a budget that no working service exceeds.
const patient = time.Second

// asking returns a directory that asks a coordinator at url.
func asking(t testing.TB, url string, change func(*directory.Config)) *directory.Directory {
	t.Helper()
	c := directory.DefaultConfig()
	c.Kind, c.URL, c.Budget = directory.LMCache, url, patient
	if change != nil {
		change(&c)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return started(t, c, directory.Params{Blocks: onGPU(0)})
}

func started(t testing.TB, c directory.Config, p directory.Params) *directory.Directory {
	t.Helper()
	d := directory.New(c, p)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return d
}

// pool is a pool of replicas: a has two ranks, b and c share an instance, d has none.
func pool() []*replica.Replica {
	named := func(id, instance string, slots ...replica.Slot) *replica.Replica {
		r := &replica.Replica{ID: replica.ID(id), Slots: slots, BlockSize: 16, Labels: map[string]string{}}
		if instance != "" {
			r.Labels[replica.LabelInstance] = instance
		}
		return r
	}
	return []*replica.Replica{named("a", "node-1", 0, 1), named("b", "node-2", 2), named("c", "node-2", 3), named("d", "", 4)}
}

// prompt is a prompt of n tokens.
func prompt(n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(i*7 + 1)
	}
	return ids
}

func query(ids []uint32) *directory.Query {
	return &directory.Query{Model: "m", IDs: ids, Replicas: pool(), Prompt: tokens(len(ids))}
}

// tokens is a prompt of so many tokens.
type tokens int

func (n tokens) Hashes(size int) []blockhash.Hash { return make([]blockhash.Hash, int(n)/size) }

// held is an answer's list in the order of slots.
func held(a *directory.Answer) string {
	if a == nil {
		return "not asked"
	}
	list := slices.Clone(a.Held)
	slices.SortFunc(list, func(x, y directory.Held) int { return int(x.Slot) - int(y.Slot) })
	text := a.Result
	for _, h := range list {
		text += fmt.Sprintf(" %d:%d-%d-%d", h.Slot, h.From, h.Host, h.Store)
	}
	return text
}

func TestLMCacheNamesTheChunksThatEachInstanceReaches(t *testing.T) {
	own := func(instance, tier string) directorytest.Placement {
		return directorytest.Placement{Instance: instance, Incarnation: 7, Tier: tier, Backend: "dram", Size: 1 << 20}
	}
	pooled := directorytest.Placement{Instance: "node-9", Tier: "l2", Backend: "s3", Shared: true}
	for _, tt := range []struct {
		name   string
		world  int
		put    func(s *directorytest.LMCache, ids []uint32)
		tokens int
		want   string
	}{
		{"nothing", 1, func(*directorytest.LMCache, []uint32) {}, 2048, "miss"},
		{"in memory", 1, func(s *directorytest.LMCache, ids []uint32) { s.Put("m", "", 1, ids, 3, own("node-1", "l1")) }, 2048, "hit 0:0-768-768 1:0-768-768"},
		{"on disk", 1, func(s *directorytest.LMCache, ids []uint32) { s.Put("m", "", 1, ids, 3, own("node-2", "l2")) }, 2048, "hit 2:0-0-768 3:0-0-768"},
		{"memory, then disk", 1, func(s *directorytest.LMCache, ids []uint32) {
			s.Put("m", "", 1, ids, 2, own("node-2", "l1"))
			s.Put("m", "", 1, ids, 8, own("node-2", "l2"))
		}, 2048, "hit 2:0-512-2048 3:0-512-2048"},
		{"a pool of all", 1, func(s *directorytest.LMCache, ids []uint32) { s.Put("m", "", 1, ids, 4, pooled) }, 2048, "hit 0:0-0-1024 1:0-0-1024 2:0-0-1024 3:0-0-1024"},
		{"memory, continued by the pool", 1, func(s *directorytest.LMCache, ids []uint32) {
			s.Put("m", "", 1, ids, 2, own("node-1", "l1"))
			s.Put("m", "", 1, ids, 5, pooled)
		}, 2048, "hit 0:0-512-1280 1:0-512-1280 2:0-0-1280 3:0-0-1280"},
		{"a part of each chunk on each rank", 2, func(s *directorytest.LMCache, ids []uint32) {
			s.PutRank("m", "", 0, ids, 4, own("node-1", "l1"))
			s.PutRank("m", "", 1, ids, 2, own("node-1", "l1"))
			s.PutRank("m", "", 1, ids, 3, own("node-1", "l2"))
		}, 2048, "hit 0:0-512-768 1:0-512-768"},
		{"another instance alone", 1, func(s *directorytest.LMCache, ids []uint32) { s.Put("m", "", 1, ids, 4, own("node-7", "l1")) }, 2048, "miss"},
		{"another model", 1, func(s *directorytest.LMCache, ids []uint32) { s.Put("other", "", 1, ids, 4, own("node-1", "l1")) }, 2048, "miss"},
		{"another salt", 1, func(s *directorytest.LMCache, ids []uint32) { s.Put("m", "salt", 1, ids, 4, own("node-1", "l1")) }, 2048, "miss"},
		{"the end is no whole chunk", 1, func(s *directorytest.LMCache, ids []uint32) { s.Put("m", "", 1, ids, 8, own("node-1", "l1")) }, 2100, "hit 0:0-2048-2048 1:0-2048-2048"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, ids := new(directorytest.LMCache), prompt(tt.tokens)
			tt.put(s, ids)
			d := service(t, s, func(c *directory.Config) { c.WorldSize = tt.world })
			a := d.Find(t.Context(), query(ids))
			if got := held(a); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if a.Source != directory.LMCache || a.Took <= 0 {
				t.Errorf("from %q in %v", a.Source, a.Took)
			}
			if asked := s.Asked(); len(asked) != 1 || !slices.Equal(asked[0], ids) {
				t.Errorf("%d questions, or other ids", len(asked))
			}
		})
	}
}

func TestTheConductorNamesThePartsOfEachRank(t *testing.T) {
	ids := prompt(2048)
	of := directorytest.QueryFields{Model: "big", Tenant: "team", BlockSize: 16, IDs: ids[:1500], Lora: "sql", Salt: "s"}
	for _, older := range []bool{false, true} {
		s := &directorytest.Conductor{Older: older}
		s.Put(of, "node-1", directorytest.Match{GPU: 160, CPU: 320, Disk: 320}, directorytest.Match{GPU: 0, CPU: 0, Disk: 640})
		s.Put(of, "node-2", directorytest.Match{GPU: 640, CPU: 640, Disk: 640})
		s.Put(of, "node-7", directorytest.Match{CPU: 1024, Disk: 1024})
		d := service(t, s, func(c *directory.Config) {
			c.Kind, c.Tenant, c.Models = directory.Mooncake, "team", map[string]string{"m": "big"}
		})
		q := query(ids)
		q.Adapter, q.Salt = "sql", "s"
		want := "hit 0:160-320-320 1:0-0-640"
		if older {
			want = "hit 0:160-320-640 1:160-320-640" // the longest of any rank
		}
		// What lies on GPUs alone is the index's.
		if got := held(d.Find(t.Context(), q)); got != want {
			t.Errorf("older %t: %s, want %s", older, got, want)
		}
		asked := s.Asked()
		if len(asked) != 1 || asked[0].Model != "big" || asked[0].BlockSize != 16 || !slices.Equal(asked[0].IDs, ids) {
			t.Fatalf("older %t: asked %+v", older, asked)
		}
		q.Adapter, q.Salt = "", ""
		if got := held(d.Find(t.Context(), q)); got != "miss" {
			t.Errorf("older %t, another namespace: %s", older, got)
		}
	}
}

// A choice asks nothing where the answer could change nothing.
func TestSomePromptsAreNotAskedAbout(t *testing.T) {
	s := new(directorytest.LMCache)
	server := httptest.NewServer(s)
	defer server.Close()
	c := directory.DefaultConfig()
	c.URL, c.Budget = server.URL, patient
	unlabelled := query(prompt(4096))
	unlabelled.Replicas = unlabelled.Replicas[3:]
	adapted := query(prompt(4096))
	adapted.Adapter = "sql"
	for name, tt := range map[string]struct {
		kind string
		q    *directory.Query
		gpu  onGPU
		want string
	}{
		"off":                               {"", query(prompt(4096)), 0, "not asked"},
		"a short prompt":                    {directory.LMCache, query(prompt(1023)), 0, "not asked"},
		"a long one":                        {directory.LMCache, query(prompt(1024)), 0, "miss"},
		"a GPU holds nearly all":            {directory.LMCache, query(prompt(4096)), 193, "not asked"},
		"a GPU holds a part":                {directory.LMCache, query(prompt(4096)), 192, "miss"},
		"no replica is known there":         {directory.LMCache, unlabelled, 0, "not asked"},
		"an adapter, which LMCache lacks":   {directory.LMCache, adapted, 0, "not asked"},
		"fewer tokens than LMCache's chunk": {directory.LMCache, query(prompt(300)), 0, "not asked"},
	} {
		c.Kind = tt.kind
		d := started(t, c, directory.Params{Blocks: tt.gpu})
		if got := held(d.Find(t.Context(), tt.q)); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
		if asks := tt.kind != "" && name != "no replica is known there"; d.Asks(tt.q.Replicas) != asks {
			t.Errorf("%s: Asks is %t", name, !asks)
		}
	}
	if n := len(s.Asked()); n != 2 {
		t.Errorf("%d questions, want 2", n)
	}
}

// answering serves one text.
func answering(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
}

// key is an entry of a coordinator's answer.
func key(chunk int, placements string) string {
	return fmt.Sprintf(`{"key":{"chunk_hash_hex":"%04x","model_name":"m","kv_rank":0,"object_group_id":0,"cache_salt":""},"placements":[%s],"token_ids":[],"access_count":0}`, chunk, placements)
}

const inMemory = `{"instance_id":"node-1","incarnation":1,"tier":"l1","backend":"dram","size_bytes":1,"shared":false}`

// An answer that is not one, or contradicts the question, names nothing.
func TestAnAnswerThatCannotBeUsedNamesNothing(t *testing.T) {
	four := key(1, inMemory) + "," + key(2, inMemory) + "," + key(3, inMemory) + "," + key(4, inMemory)
	for name, tt := range map[string]struct{ kind, text, want string }{
		"good":                  {directory.LMCache, `{"chunks":4,"results":[` + four + `]}`, "hit 0:0-1024-1024 1:0-1024-1024"},
		"the count at the end":  {directory.LMCache, `{"other":{"x":[1]},"results":[` + four + `],"chunks":4}`, "hit 0:0-1024-1024 1:0-1024-1024"},
		"empty":                 {directory.LMCache, ``, "gone"},
		"half":                  {directory.LMCache, `{"chunks":4,"results":[` + key(1, inMemory) + `,{"key":{"ch`, "gone"},
		"no JSON":               {directory.LMCache, `<html>`, "wrong"},
		"a list":                {directory.LMCache, `[]`, "wrong"},
		"without chunks":        {directory.LMCache, `{"results":[` + four + `]}`, "wrong"},
		"without results":       {directory.LMCache, `{"chunks":4}`, "wrong"},
		"another chunk size":    {directory.LMCache, `{"chunks":8,"results":[]}`, "wrong"},
		"fewer results":         {directory.LMCache, `{"chunks":4,"results":[` + key(1, inMemory) + `]}`, "wrong"},
		"more results":          {directory.LMCache, `{"chunks":4,"results":[` + four + `,` + key(5, inMemory) + `]}`, "wrong"},
		"a key without a chunk": {directory.LMCache, `{"chunks":4,"results":[{"key":{},"placements":[]}]}`, "wrong"},
		"a word for a list":     {directory.LMCache, `{"chunks":4,"results":"none"}`, "wrong"},
		"a word for placements": {directory.LMCache, `{"chunks":4,"results":[{"key":{"chunk_hash_hex":"01"},"placements":"x"}]}`, "wrong"},

		"conductor: good":         {directory.Mooncake, `{"instances":{"node-2":{"longest_matched":64,"dp":{"0":0},"gpu":0,"cpu":64,"disk":64}}}`, "hit 2:0-64-64 3:0-64-64"},
		"conductor: none":         {directory.Mooncake, `{"instances":{}}`, "miss"},
		"conductor: no tenant":    {directory.Mooncake, `{}`, "miss"},
		"conductor: empty":        {directory.Mooncake, ``, "wrong"},
		"conductor: half":         {directory.Mooncake, `{"instances":{"node-2":{"cpu":64`, "wrong"},
		"conductor: an error":     {directory.Mooncake, `{"error":"no"}`, "wrong"},
		"conductor: null":         {directory.Mooncake, `{"instances":null}`, "miss"},
		"conductor: no numbers":   {directory.Mooncake, `{"instances":{"node-2":{}}}`, "wrong"},
		"conductor: a word":       {directory.Mooncake, `{"instances":{"node-2":{"cpu":"64"}}}`, "wrong"},
		"conductor: below zero":   {directory.Mooncake, `{"instances":{"node-2":{"cpu":-64,"disk":64}}}`, "wrong"},
		"conductor: too much":     {directory.Mooncake, `{"instances":{"node-2":{"cpu":1025,"disk":0}}}`, "wrong"},
		"conductor: a bad rank":   {directory.Mooncake, `{"instances":{"node-2":{"cpu":64,"disk":64,"rank_matches":{"x":{"cpu":64,"disk":64}}}}}`, "wrong"},
		"conductor: another rank": {directory.Mooncake, `{"instances":{"node-2":{"cpu":64,"disk":64,"rank_matches":{"5":{"cpu":64,"disk":64}}}}}`, "miss"},
	} {
		t.Run(name, func(t *testing.T) {
			d := service(t, answering(tt.text), func(c *directory.Config) { c.Kind = tt.kind })
			if got := held(d.Find(t.Context(), query(prompt(1024)))); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func TestARefusalNamesNothing(t *testing.T) {
	for _, status := range []int{http.StatusFound, http.StatusNotFound, http.StatusUnprocessableEntity, http.StatusInternalServerError} {
		d := service(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(`{"chunks":4}`))
		}), nil)
		if got := held(d.Find(t.Context(), query(prompt(1024)))); got != "refused" {
			t.Errorf("%d: %s", status, got)
		}
	}
}

// However the service fails, a choice waits for no longer than the budget.
func TestAChoiceWaitsNoLongerThanTheBudget(t *testing.T) {
	const budget, grace = 30 * time.Millisecond, 400 * time.Millisecond
	slow := func(write func(w http.ResponseWriter)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			write(w)
			w.(http.Flusher).Flush()
			gone(r)
		}
	}
	full := func(w http.ResponseWriter) {
		_, _ = w.Write([]byte(`{"chunks":4,"results":[` + key(1, inMemory) + `,`))
	}
	handlers := map[string]http.Handler{
		"hangs":                  http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { gone(r) }),
		"hangs after the head":   slow(func(http.ResponseWriter) {}),
		"hangs in the answer":    slow(full),
		"sends one byte a time":  trickle(),
		"answers without an end": endless(),
	}
	for name, handler := range handlers {
		t.Run(name, func(t *testing.T) {
			d := service(t, handler, func(c *directory.Config) { c.Budget = budget })
			began := time.Now()
			got, took := held(d.Find(t.Context(), query(prompt(1024)))), time.Since(began)
			if got != "late" || took > budget+grace {
				t.Errorf("%s after %v", got, took)
			}
		})
	}
	t.Run("accepts nothing", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts, nobody reads
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		d := asking(t, "http://"+l.Addr().String(), func(c *directory.Config) { c.Budget = budget })
		began := time.Now()
		got, took := held(d.Find(t.Context(), query(prompt(1024)))), time.Since(began)
		if got != "late" || took > budget+grace {
			t.Errorf("%s after %v", got, took)
		}
	})
	t.Run("is gone", func(t *testing.T) {
		server := httptest.NewServer(answering(""))
		server.Close()
		d := asking(t, server.URL, func(c *directory.Config) { c.Budget = budget })
		began := time.Now()
		got, took := held(d.Find(t.Context(), query(prompt(1024)))), time.Since(began)
		if got != "gone" || took > budget+grace {
			t.Errorf("%s after %v", got, took)
		}
	})
	t.Run("breaks off", func(t *testing.T) {
		d := service(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			full(w)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}), nil)
		if got := held(d.Find(t.Context(), query(prompt(1024)))); got != "gone" {
			t.Error(got)
		}
	})
	t.Run("the caller leaves", func(t *testing.T) {
		d := service(t, handlers["hangs"], nil)
		ctx, cancel := context.WithTimeout(t.Context(), budget)
		defer cancel()
		began := time.Now()
		if d.Find(ctx, query(prompt(1024))); time.Since(began) > budget+grace {
			t.Errorf("after %v", time.Since(began))
		}
	})
}

// gone waits until the client has left, which a server notices once it has read the question.
func gone(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// A long prompt, whose load gains more and whose lookup takes longer, may wait longer, but never longer than a second.
func TestALongPromptWaitsLonger(t *testing.T) {
	s := new(directorytest.LMCache)
	d := service(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(100 * time.Millisecond)
		s.ServeHTTP(w, r)
	}), func(c *directory.Config) { c.Budget, c.TokenBudget = time.Millisecond, 100*time.Microsecond })
	if got := held(d.Find(t.Context(), query(prompt(9000)))); got != "miss" {
		t.Errorf("a long prompt: %s", got)
	}
	d = service(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { gone(r) }), func(c *directory.Config) { c.TokenBudget = time.Millisecond })
	began := time.Now()
	if got, took := held(d.Find(t.Context(), query(prompt(8000)))), time.Since(began); got != "late" || took < 900*time.Millisecond || took > 1500*time.Millisecond {
		t.Errorf("%s after %v, want late after a second", got, took)
	}
}

// trickle sends an answer a byte at a time.
func trickle() http.HandlerFunc {
	text := `{"chunks":4,"results":[` + key(1, inMemory) + strings.Repeat(" ", 10_000) + `]}`
	return func(w http.ResponseWriter, r *http.Request) {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := range len(text) {
			select {
			case <-r.Context().Done():
				return
			case <-tick.C:
			}
			if _, err := w.Write([]byte(text[i : i+1])); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

// endless sends keys of other object groups, which count for nothing, for as long as the client reads.
func endless() http.HandlerFunc {
	other := strings.Replace(key(1, ""), `"object_group_id":0`, `"object_group_id":1`, 1)
	return func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write([]byte(`{"chunks":4,"results":[` + other))
		for err == nil {
			_, err = w.Write([]byte("," + other))
		}
	}
}

// An answer is not read beyond its bound, even where there is time.
func TestTooLargeAnAnswerIsNotRead(t *testing.T) {
	filler := []byte(strings.Repeat(" ", 1<<20))
	d := service(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write([]byte(`{"instances":`))
		for range 64 {
			if err == nil {
				_, err = w.Write(filler)
			}
		}
	}), func(c *directory.Config) { c.Kind = directory.Mooncake })
	if got := held(d.Find(t.Context(), query(prompt(1024)))); got != "wrong" {
		t.Error(got)
	}
}

// A service that fails is left alone for a while, and asked again later.
func TestAServiceThatFailsRests(t *testing.T) {
	var fails atomic.Bool
	var asked atomic.Int64
	s := new(directorytest.LMCache)
	d := service(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if fails.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		s.ServeHTTP(w, r)
	}), nil)
	find := func() string { return held(d.Find(t.Context(), query(prompt(1024)))) }
	fails.Store(true)
	for i, want := range []string{"refused", "refused", "refused", "resting", "resting"} {
		if got := find(); got != want {
			t.Fatalf("lookup %d: %s, want %s", i, got, want)
		}
	}
	if n := asked.Load(); n != 3 {
		t.Errorf("%d questions, want 3", n)
	}
	fails.Store(false)
	for deadline := time.Now().Add(10 * time.Second); find() != "miss"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is not asked again")
		}
	}
	if got := find(); got != "miss" {
		t.Errorf("after its return: %s", got)
	}
}

// New settings count at once, and end a rest.
func TestNewSettingsAreAsked(t *testing.T) {
	refusing := httptest.NewServer(http.NotFoundHandler())
	defer refusing.Close()
	s := httptest.NewServer(new(directorytest.Conductor))
	defer s.Close()
	c := directory.DefaultConfig()
	c.Kind, c.URL, c.Budget = directory.LMCache, refusing.URL, patient
	d := started(t, c, directory.Params{Blocks: onGPU(0)})
	for range 5 {
		d.Find(t.Context(), query(prompt(1024)))
	}
	c.Kind, c.URL = directory.Mooncake, s.URL+"/"
	if err := d.Update(c); err != nil {
		t.Fatal(err)
	}
	if a := d.Find(t.Context(), query(prompt(1024))); held(a) != "miss" || a.Source != directory.Mooncake {
		t.Errorf("%s", held(a))
	}
	c.Kind = ""
	if err := d.Update(c); err != nil {
		t.Fatal(err)
	}
	if got := held(d.Find(t.Context(), query(prompt(1024)))); got != "not asked" {
		t.Error(got)
	}
}

// More lookups than the bound are not made.
func TestLookupsInFlightAreBounded(t *testing.T) {
	arrived, release := make(chan struct{}, 100), make(chan struct{})
	d := service(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-release
		w.WriteHeader(http.StatusNotFound)
	}), nil)
	results := make(chan string, 64)
	for range 64 {
		go func() { results <- held(d.Find(context.Background(), query(prompt(1024)))) }()
	}
	for range 64 {
		<-arrived
	}
	if got := held(d.Find(t.Context(), query(prompt(1024)))); got != "busy" {
		t.Errorf("lookup 65: %s", got)
	}
	close(release)
	for range 64 {
		<-results
	}
}

func TestMetricsCountLookupsByResult(t *testing.T) {
	reader := sdk.NewManualReader()
	s := httptest.NewServer(new(directorytest.LMCache))
	defer s.Close()
	c := directory.DefaultConfig()
	c.Kind, c.URL, c.Budget = directory.LMCache, s.URL, patient
	d := started(t, c, directory.Params{Blocks: onGPU(0), Scope: scope.New(nil, sdk.NewMeterProvider(sdk.WithReader(reader)), nil)})
	d.Find(t.Context(), query(prompt(1024)))
	d.Find(t.Context(), query(prompt(10)))
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	counts, waits := map[string]int64{}, uint64(0)
	for _, m := range all.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				result, _ := p.Attributes.Value("result")
				counts[result.AsString()] = p.Value
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				waits += p.Count
			}
		}
	}
	if len(counts) != 8 || counts["miss"] != 1 || waits != 1 {
		t.Errorf("%v, %d waits", counts, waits)
	}
}

func TestConfigNamesItsFaults(t *testing.T) {
	good := directory.DefaultConfig()
	if err := good.Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for want, change := range map[string]func(*directory.Config){
		"kind":         func(c *directory.Config) { c.Kind = "redis" },
		"url":          func(c *directory.Config) { c.Kind = directory.LMCache },
		"base URL":     func(c *directory.Config) { c.Kind, c.URL = directory.LMCache, "http://user@a/?x=1" },
		"budget":       func(c *directory.Config) { c.Budget = 0 },
		"token_budget": func(c *directory.Config) { c.TokenBudget = time.Second },
		"least_tokens": func(c *directory.Config) { c.LeastTokens = 0 },
		"chunk_tokens": func(c *directory.Config) { c.ChunkTokens = 0 },
		"world_size":   func(c *directory.Config) { c.WorldSize = 0 },
		"tenant":       func(c *directory.Config) { c.Tenant = "" },
		"models":       func(c *directory.Config) { c.Models = map[string]string{"a": ""} },
	} {
		c := directory.DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
