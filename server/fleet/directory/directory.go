package directory

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// The results of a lookup.
const (
	Hit     = "hit"     // a replica holds a part of the prompt
	Miss    = "miss"    // none does
	Late    = "late"    // there was no whole answer within the budget
	Gone    = "gone"    // the service could not be reached, or broke off
	Refused = "refused" // it answered with another status than 200
	Wrong   = "wrong"   // its answer cannot be read, or contradicts the question
	Resting = "resting" // it was not asked, because it had failed several times
	Busy    = "busy"    // it was not asked, because too many lookups were in flight
)

const (
	// mostLookups bounds the lookups in flight, maxAnswer the bytes of an answer, and maxDrained the bytes of an answer that are read only to
	// keep its connection.
	mostLookups = 64
	maxAnswer   = 32 << 20
	maxDrained  = 4 << 20
	// idleTime is how long a connection is kept without use: less than the ten seconds of LMCache's coordinator.
	idleTime = 8 * time.Second
)

// Query is a question about a prompt. Its slices and functions are only read, until Find returns.
type Query struct {
	// Model is the name that engines serve the model under, Adapter the LoRA adapter or empty, and Salt the cache salt or empty.
	Model, Adapter, Salt string
	// IDs are the prompt's token ids from its beginning on.
	IDs []uint32
	// Prompt names the prompt's blocks.
	Prompt Prompt
	// Replicas is the pool. Replicas without the label kv_instance hold nothing by the service's word.
	Replicas []*replica.Replica
}

// Prompt names the blocks of a prompt.
type Prompt interface {
	Hashes(blockSize int) []blockhash.Hash
}

// Answer is the result of a lookup.
type Answer struct {
	decision.Lookup
	// Held has the ranks that hold a part of the prompt.
	Held []Held
}

// Held is how much of a prompt's beginning one rank can load, in tokens: from From to Host it is in the rank's host memory, and on to Store in a store.
// None is below the one before. A rank that does not hold the first From tokens itself can load nothing.
type Held struct {
	Slot              replica.Slot
	From, Host, Store int
}

// Blocks finds the ranks with the beginning of a prompt in their caches; *kvindex.Index does.
type Blocks interface {
	Match(dst []kvindex.Overlap, hashes []blockhash.Hash) []kvindex.Overlap
}

// Params has the arguments of the code.
type Params struct {
	// Blocks must not be nil.
	Blocks Blocks
	Scope  scope.Scope
}

// Directory asks one service. Make one with New.
type Directory struct {
	set    atomic.Pointer[settings]
	blocks Blocks
	client *http.Client
	slots  chan struct{} // one token per lookup in flight
	rest   rest
	log    *slog.Logger
	*metrics
}

// settings are a Config with the protocol of its kind.
type settings struct {
	Config
	protocol protocol // nil: nothing is asked
}

// protocol is the language of one kind of service. Its methods are safe for concurrent use.
type protocol interface {
	// question returns the path and the body of the question; false where the service cannot answer it.
	question(q *Query, model string, blockSize int) (path string, body []byte, ok bool)
	// read reads the answer and reports the instances that hold a part of the prompt. An error that wraps errWrong is the answer's own;
	// any other one is the reader's. It checks often whether late, and then returns errLate.
	read(answer io.Reader, q *Query, late func() bool, to *instances) error
}

var (
	errWrong = errors.New("the answer cannot be used")
	errLate  = errors.New("the time is over")
)

// New returns a Directory. c must be valid.
func New(c Config, p Params) *Directory {
	d := &Directory{
		blocks: p.Blocks, slots: make(chan struct{}, mostLookups), log: p.Scope.Log(), metrics: newMetrics(p.Scope.Meters()),
		client: &http.Client{
			Transport: &http.Transport{
				DialContext:     (&net.Dialer{Timeout: maxBudget}).DialContext,
				MaxConnsPerHost: mostLookups, MaxIdleConnsPerHost: mostLookups, IdleConnTimeout: idleTime, TLSHandshakeTimeout: maxBudget,
				DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	_ = d.Update(c) // never fails
	return d
}

// Update puts new settings in force, for lookups that begin from now on. The error is always nil.
func (d *Directory) Update(c Config) error {
	s := &settings{Config: c}
	s.URL = strings.TrimSuffix(c.URL, "/")
	switch c.Kind {
	case LMCache:
		s.protocol = &lmcache{chunk: c.ChunkTokens, world: c.WorldSize}
	case Mooncake:
		s.protocol = &conductor{tenant: c.Tenant}
	}
	d.set.Store(s)
	d.rest.end()
	return nil
}

// Run closes the connections when ctx ends.
func (d *Directory) Run(ctx context.Context) error {
	<-ctx.Done()
	d.client.CloseIdleConnections()
	return nil
}

// Asks reports whether the service may be asked about prompts for one of the replicas: then their token ids are needed.
func (d *Directory) Asks(replicas []*replica.Replica) bool {
	return d.set.Load().protocol != nil && len(instancesOf(replicas).byName) > 0
}

// Find returns the parts of the prompt that replicas can load from below their GPUs, as the service says; nil when it was not asked, because there was
// nothing to ask. It waits for no longer than the budget and the tokens allow, or until ctx ends.
func (d *Directory) Find(ctx context.Context, q *Query) *Answer {
	set := d.set.Load()
	if set.protocol == nil || len(q.IDs) < set.LeastTokens {
		return nil
	}
	to := instancesOf(q.Replicas)
	if len(to.byName) == 0 {
		return nil
	}
	lacking := len(q.IDs) - d.onGPU(q, to.blockSize)
	if lacking < set.LeastTokens {
		return nil
	}
	path, body, ok := set.question(q, to)
	if !ok {
		return nil
	}
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, set.wait(lacking))
	defer cancel()
	result := d.ask(bounded, set, path, body, q, to)
	d.judge(set, result, ctx.Err() != nil)
	a := &Answer{Lookup: decision.Lookup{Source: set.Kind, Result: result, Took: time.Since(began)}}
	if result == Hit {
		a.Held = to.list()
	}
	d.metrics.looked(result, a.Took)
	return a
}

// question is the question about a prompt, under the service's name for its model.
func (s *settings) question(q *Query, to *instances) (path string, body []byte, ok bool) {
	model := q.Model
	if name, ok := s.Models[model]; ok {
		model = name
	}
	return s.protocol.question(q, model, to.blockSize)
}

// wait is how long a choice waits for an answer about a prompt of which every GPU lacks so many tokens.
func (s *settings) wait(lacking int) time.Duration {
	return min(s.Budget+time.Duration(lacking)*s.TokenBudget, maxBudget)
}

// onGPU is the longest part of the prompt that a rank holds on its GPU, in tokens.
func (d *Directory) onGPU(q *Query, blockSize int) (tokens int) {
	if blockSize == 0 {
		return 0
	}
	for _, o := range d.blocks.Match(nil, q.Prompt.Hashes(blockSize)) {
		tokens = max(tokens, int(o.GPU)*blockSize)
	}
	return tokens
}

// ask asks the service, unless it rests or too many lookups are in flight. ctx ends with the time of the choice.
func (d *Directory) ask(ctx context.Context, set *settings, path string, body []byte, q *Query, to *instances) (result string) {
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	default:
		return Busy
	}
	if !d.rest.enter(time.Now()) {
		return Resting
	}
	return resultOf(d.exchange(ctx, set, path, body, q, to), to)
}

// judge notes how a lookup ended, for the next ones. left is set when its caller has left, which says nothing about the service.
func (d *Directory) judge(set *settings, result string, left bool) {
	switch {
	case result == Busy, result == Resting:
	case left:
		d.rest.leave()
	case result == Hit, result == Miss:
		if d.rest.succeed() {
			d.log.Info("the directory answers again", "kind", set.Kind, "url", set.URL)
		}
	default:
		if pause := d.rest.fail(time.Now()); pause > 0 {
			d.log.Warn("the directory fails and is not asked for a while", "kind", set.Kind, "url", set.URL, "result", result, "pause", pause)
		}
	}
}

// errStatus is an answer with another status than 200.
var errStatus = errors.New("the service refuses the question")

// resultOf is the result of an exchange that ended with err.
func resultOf(err error, to *instances) string {
	var timeout interface{ Timeout() bool }
	switch {
	case err == nil && to.found:
		return Hit
	case err == nil:
		return Miss
	case errors.Is(err, errLate), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.As(err, &timeout) && timeout.Timeout():
		return Late
	case errors.Is(err, errStatus):
		return Refused
	case errors.Is(err, errWrong):
		return Wrong
	}
	return Gone
}

// exchange sends the question and reads the answer, until ctx ends.
func (d *Directory) exchange(ctx context.Context, set *settings, path string, body []byte, q *Query, to *instances) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, set.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := d.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // read as far as it is needed
	if resp.StatusCode != http.StatusOK {
		drain(resp.Body)
		return errStatus
	}
	limited := &io.LimitedReader{R: resp.Body, N: maxAnswer}
	err = set.protocol.read(limited, q, func() bool { return ctx.Err() != nil }, to)
	switch {
	case ctx.Err() != nil:
		return errLate
	case err != nil && limited.N <= 0:
		return errors.Join(errWrong, err)
	case err == nil:
		drain(resp.Body)
	}
	return err
}

// drain reads the rest of an answer, so that its connection can be used again.
func drain(body io.Reader) {
	_, _ = io.CopyN(io.Discard, body, maxDrained) // an error costs the connection alone
}
