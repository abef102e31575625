package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
	"github.com/kvpilot/kvpilot/server/wire/socket"
)

const (
	maxProbeBody  = 4 << 20
	versionEvery  = time.Minute
	minProbeGap   = 100 * time.Millisecond // between probes that other parts request
	suspicionWait = 500 * time.Millisecond // between probes while a failure is not yet confirmed
)

// prober watches one replica from a goroutine of its own.
type prober struct {
	spec   Spec
	access credentials
	pulse  *pulse
	cancel context.CancelFunc
	kick   chan struct{}
	renew  chan struct{} // forget what the old engine reported
	missed string        // the model of the spec that the replica was seen not to list; only run touches it
}

func (p *prober) stop() { p.cancel() }

// wake requests a probe at once.
func (p *prober) wake() {
	select {
	case p.kick <- struct{}{}:
	default: // asked already
	}
}

// forget makes the next probe read everything again.
func (p *prober) forget() {
	select {
	case p.renew <- struct{}{}:
	default: // asked already
	}
}

// result is what one probe found. models and version are nil when they were not asked for.
type result struct {
	at      time.Time
	err     error
	refused bool // the port is closed
	mute    bool // nothing came back in time
	own     bool // this machine had no room for a connection
	near    bool // the machine at its address answers, or did
	models  []replica.Model
	version *version
	// sources are where the replica's ranks publish KV events, when it was asked and answered.
	sources *[]replica.Events
}

type version struct {
	text string
	rust bool
}

func (c *core) startProber(e *entry) *prober {
	ctx, cancel := context.WithCancel(c.ctx)
	p := &prober{spec: e.spec, access: e.access, pulse: &e.vitals.pulse, cancel: cancel, kick: make(chan struct{}, 1), renew: make(chan struct{}, 1)}
	c.probers.Go(func() {
		p.run(ctx, c.r, func(res result) {
			c.r.inbox.put(func(c *core) {
				if e.prober == p && c.entries[e.id] == e {
					e.took(res, c)
				}
			})
		})
	})
	return p
}

// run probes until ctx ends: at a jittered interval while all is well, soon again while a failure
// waits for confirmation, ever more rarely while the replica stays down.
func (p *prober) run(ctx context.Context, r *Registry, report func(result)) {
	var modelsDue, versionDue, sourcesDue, last time.Time
	var down time.Time // since when it fails
	fails, oks, seen := 0, 0, false
	engine := ""
	timer := time.NewTimer(time.Duration(rand.Int64N(int64(min(r.config().Probe.Interval, 100*time.Millisecond)) + 1)))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-p.kick:
			if !pause(ctx, minProbeGap-time.Since(last)) {
				return
			}
		}
		select {
		case <-p.renew:
			modelsDue, versionDue, sourcesDue = time.Time{}, time.Time{}, time.Time{}
		default:
		}
		turns := r.probing
		if fails > 0 {
			turns = r.doubting // hanging probes take no turn of a healthy replica
		}
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conf := r.config().Probe
		now := time.Now()
		res := p.probe(ctx, r, !now.Before(modelsDue), !now.Before(versionDue))
		if res.version != nil {
			engine = res.version.text
		}
		if res.err == nil && listsSources(engine) && !now.Before(sourcesDue) {
			res.sources = p.sources(ctx, r)
		}
		<-turns
		if ctx.Err() != nil {
			return
		}
		r.metrics.probed(ctx, res)
		if res.own { // it is no evidence about the replica
			last = res.at
			timer.Reset(suspicionWait)
			continue
		}
		if res.models != nil {
			modelsDue = now.Add(conf.ModelsInterval)
		}
		if res.version != nil {
			versionDue = now.Add(versionEvery)
		}
		if res.sources != nil {
			sourcesDue = now.Add(versionEvery)
		}
		if res.err != nil {
			if fails == 0 {
				down = now
			}
			fails, oks = fails+1, 0
			modelsDue, versionDue, sourcesDue = time.Time{}, time.Time{}, time.Time{} // it may return as another process
		} else {
			fails, oks, seen = 0, oks+1, true
		}
		last = res.at
		report(res)
		timer.Reset(conf.wait(fails, oks, seen, res.near && now.Sub(down) < nearbyFor))
	}
}

// wait is the time to the next probe after so many consecutive failures or successes. A replica that
// was never seen healthy may be loading its model: it is probed at the usual pace. near is set when it may
// return at any moment.
func (p ProbeConfig) wait(fails, oks int, seen, near bool) time.Duration {
	wait := p.Interval
	switch {
	case fails == 0 && oks < p.Up:
		wait = min(wait, confirm)
	case fails > 0 && fails < p.Down:
		wait = min(wait, suspicionWait)
	case near && fails > 0:
		wait = min(wait, nearby)
	case fails >= p.Down && seen:
		for i := p.Down; i < fails && wait < p.MaxInterval; i++ {
			wait *= 2
		}
		wait = min(wait, p.MaxInterval)
	}
	return wait - wait/10 + time.Duration(rand.Int64N(int64(wait/5)+1))
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// probe asks for health and, when they are due, for the models and the version.
func (p *prober) probe(ctx context.Context, r *Registry, models, ver bool) (res result) {
	began := time.Now()
	p.pulse.ask(began)
	var way whence
	_, err := p.get(traced(ctx, &way), r, r.config().Probe.Path)
	res.mute = err != nil && ctx.Err() == nil && timedOut(err)
	if !res.mute {
		p.pulse.answer(time.Now(), time.Since(began))
	}
	if err == nil && models {
		res.models, err = p.models(ctx, r)
	}
	if err == nil && ver {
		var body []byte
		body, err = p.get(ctx, r, "/version")
		if err == nil {
			res.version = readVersion(body)
		} else {
			res.version, err = &version{}, nil // a server in between may hide it; nothing depends on it
		}
	}
	res.at, res.err = time.Now(), err
	res.own = socket.OwnFault(err)
	closed := errors.Is(err, syscall.ECONNREFUSED)
	res.refused = closed || notFound(err)
	res.near = way.connected || closed
	if res.own || res.refused {
		p.pulse.excuse()
	}
	return res
}

// timedOut reports whether the time for an answer was over.
func timedOut(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

func notFound(err error) bool {
	var dns *net.DNSError
	return errors.As(err, &dns) && dns.IsNotFound
}

// get returns the body of a 200 answer.
func (p *prober) get(ctx context.Context, r *Registry, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, r.config().Probe.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(tlspeer.With(ctx, p.access.peer), http.MethodGet, p.spec.URL+path, nil)
	if err != nil {
		return nil, fmt.Errorf("probe %s: %w", path, err)
	}
	if !p.access.key.IsEmpty() {
		req.Header.Set("Authorization", "Bearer "+p.access.key.Reveal())
	}
	resp, err := r.params.Client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // nothing is lost when closing a read body fails
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeBody+1))
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, statusError{path, resp.StatusCode}
	case err != nil:
		return nil, fmt.Errorf("probe %s: read: %w", path, err)
	case len(body) > maxProbeBody:
		return nil, fmt.Errorf("probe %s: the answer is above %d bytes", path, maxProbeBody)
	}
	return body, nil
}

// sources asks where the replica's ranks publish KV events; nil when there was no answer. A server
// without the route publishes none that it could list.
func (p *prober) sources(ctx context.Context, r *Registry) *[]replica.Events {
	body, err := p.get(ctx, r, sourcesPath)
	var refused statusError
	switch {
	case errors.As(err, &refused) && refused.status < 500:
		return &[]replica.Events{}
	case err != nil:
		return nil
	}
	list, err := readSources(body, p.spec.URL)
	if err != nil && p.spec.asks() {
		r.log.Warn("the replica's KV event sources cannot be used; set events.endpoint, and bind where the engine dials", "replica", p.spec.ID, "error", err)
	}
	if err != nil {
		return &[]replica.Events{}
	}
	return &list
}

// statusError is an answer that is not 200.
type statusError struct {
	path   string
	status int
}

// Error names the path and the status.
func (e statusError) Error() string { return fmt.Sprintf("probe %s: status %d", e.path, e.status) }

// models are the models that the replica lists, or that the operator named.
func (p *prober) models(ctx context.Context, r *Registry) ([]replica.Model, error) {
	body, err := p.get(ctx, r, "/v1/models")
	if err != nil {
		if len(p.spec.Models) > 0 {
			return p.spec.only(nil), nil // the operator's list is enough
		}
		return nil, err
	}
	listed, err := readModels(body)
	narrowed, missing := p.spec.narrow(listed)
	if missing != "" && p.spec.model != p.missed {
		p.missed = missing
		r.log.Warn("the replica does not list the model that its pod names: the label has no effect", "replica", p.spec.ID, "model", missing)
	}
	if len(p.spec.Models) > 0 && (p.spec.model == "" || missing != "") {
		return p.spec.only(listed), nil
	}
	if err == nil && len(listed) == 0 {
		err = errors.New("probe /v1/models: no models")
	}
	return narrowed, err
}

// only picks the operator's names, with what the replica reports about them.
func (s Spec) only(listed []replica.Model) []replica.Model {
	models := make([]replica.Model, len(s.Models))
	for i, name := range s.Models {
		models[i] = replica.Model{ID: name}
		if at := slices.IndexFunc(listed, func(m replica.Model) bool { return m.ID == name }); at >= 0 {
			models[i] = listed[at]
		}
	}
	return models
}

const (
	// maxModels bounds the models and adapters of a replica.
	maxModels = 16384
	// maxRootLen bounds the path of a model, in bytes; maxContext its context, in tokens.
	maxRootLen = 4096
	maxContext = 1 << 30
	// maxVersionLen bounds the text of a version.
	maxVersionLen = 64
)

// isName reports whether a replica's word can name a model: it becomes the name of a pool and a label of metrics.
func isName(text string) bool {
	return text != "" && len(text) <= maxNameLen && utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// readModels reads vLLM's answer, base models first. Models above maxModels, and names that are none, are left out.
func readModels(body []byte) ([]replica.Model, error) {
	var answer struct {
		Data json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("probe /v1/models: %w", err)
	}
	if len(answer.Data) == 0 {
		return []replica.Model{}, nil
	}
	cards, err := readCapped[struct {
		ID     string  `json:"id"`
		Root   *string `json:"root"`
		Parent *string `json:"parent"`
		MaxLen *int    `json:"max_model_len"`
	}](answer.Data, maxModels)
	if err != nil {
		return nil, fmt.Errorf("probe /v1/models: %w", err)
	}
	models := make([]replica.Model, 0, len(cards))
	for _, card := range cards {
		if isName(card.ID) && len(deref(card.Root)) <= maxRootLen && len(deref(card.Parent)) <= maxNameLen {
			models = append(models, replica.Model{
				ID: card.ID, Root: deref(card.Root), Parent: deref(card.Parent), MaxLen: min(max(0, deref(card.MaxLen)), maxContext),
			})
		}
	}
	slices.SortStableFunc(models, func(a, b replica.Model) int {
		return min(len(a.Parent), 1) - min(len(b.Parent), 1)
	})
	return models, nil
}

func deref[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}

// readVersion reads vLLM's answer; anything else is an unknown version.
func readVersion(body []byte) *version {
	var answer struct {
		Version string `json:"version"`
		Rust    string `json:"rust_frontend_version"`
	}
	if json.Unmarshal(body, &answer) != nil {
		return &version{}
	}
	if len(answer.Version) > maxVersionLen || !isName(answer.Version) {
		answer.Version = ""
	}
	return &version{text: answer.Version, rust: answer.Rust != ""}
}
