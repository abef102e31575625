package reload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// Loaded is settings as they were read.
type Loaded[C any] struct {
	// Config is the tree.
	Config C
	// Text is the settings file's; nil when there is none.
	Text []byte
	// Files are digests of the files that the settings name, by the setting that names them.
	Files map[string]string
}

// Part takes settings while it runs.
type Part[C any] interface {
	// Apply puts next in force; now is in force until then, and when it fails. Going back is an Apply too, with both exchanged.
	Apply(now, next C) error
}

// Checker is a Part that checks settings before any part applies them.
type Checker[C any] interface {
	// Check returns the faults of next, and changes nothing.
	Check(now, next C) error
}

// Section is the settings of one part.
type Section[C any] struct {
	// Name is for the log and for errors.
	Name string
	// Paths are the settings that the part takes, and all below them.
	Paths []string
	Part  Part[C]
}

// Source reads trees of settings and compares them.
type Source[C any] interface {
	// Load reads the settings again and validates them.
	Load() (Loaded[C], error)
	// Files are the digests of the files that settings name, as they are now.
	Files(c C) map[string]string
	// Diff lists the differences, and which of them need a restart.
	Diff(now, next C) []Change
	// Merge puts the settings of next that need no restart over now.
	Merge(now, next C) C
	// Hash digests all settings but the secrets.
	Hash(c C) string
}

// Params are the parts that a Manager works with. Source and Sections are required.
type Params[C any] struct {
	Source Source[C]
	// Sections are applied in this order.
	Sections []Section[C]
	// Keep is how many versions are remembered; at least 1.
	Keep  int
	Scope scope.Scope
}

// Manager holds the settings in force. It is safe for concurrent use: one reload at a time.
type Manager[C any] struct {
	params  Params[C]
	log     *slog.Logger
	metrics *metrics

	reloading sync.Mutex // held during a reload

	mu       sync.Mutex
	now      Loaded[C]    // guarded by mu: in force; settings that need a restart as they were at start
	versions []version[C] // guarded by mu; latest last
	closed   bool         // guarded by mu
	last     time.Time    // guarded by mu: of the last success
	waiting  int          // guarded by mu: settings that wait for a restart
}

type version[C any] struct {
	Version
	loaded Loaded[C]
}

// ErrClosed is why a process that ends takes no settings.
var ErrClosed = errors.New("the process is about to end")

// ErrNoVersion is why a version cannot be applied.
var ErrNoVersion = errors.New("no such version")

// New makes a Manager with the settings that the process begins with.
func New[C any](first Loaded[C], p Params[C]) *Manager[C] {
	p.Keep = max(p.Keep, 1)
	if first.Files == nil {
		first.Files = p.Source.Files(first.Config)
	}
	m := &Manager[C]{params: p, log: p.Scope.Log(), now: first, last: time.Now()}
	m.versions = []version[C]{{Version{Number: 1, Time: m.last, Origin: OriginStart, Hash: p.Source.Hash(first.Config)}, first}}
	m.metrics = newMetrics(p.Scope.Meters(), m.gauges)
	return m
}

// Config is the settings in force.
func (m *Manager[C]) Config() C {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now.Config
}

// Versions lists the remembered versions, latest first.
func (m *Manager[C]) Versions() []Version {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]Version, 0, len(m.versions))
	for _, v := range slices.Backward(m.versions) {
		list = append(list, v.Version)
	}
	return list
}

// Close makes every later reload fail, and waits for the running one.
func (m *Manager[C]) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.reloading.Lock()
	defer m.reloading.Unlock()
}

// Reload reads the settings again and applies them. Its error is a *Refused, a *failed or ErrClosed.
func (m *Manager[C]) Reload(ctx context.Context, ask Request) (Result, error) {
	m.reloading.Lock()
	defer m.reloading.Unlock()
	result, err := m.reload(ask)
	m.note(ctx, ask, result, err)
	return result, err
}

func (m *Manager[C]) reload(ask Request) (Result, error) {
	if m.ended() {
		return Result{}, ErrClosed
	}
	next, err := m.params.Source.Load()
	if err == nil {
		err = m.whole(ask.Origin, next.Text)
	}
	if err != nil {
		return Result{}, &Refused{err}
	}
	if next.Files == nil {
		next.Files = m.params.Source.Files(next.Config)
	}
	return m.apply(ask, next, 0)
}

// whole refuses a text that is cut short: a shorter file with fewer settings is often good YAML, and might turn keys off.
func (m *Manager[C]) whole(origin Origin, text []byte) error {
	m.mu.Lock()
	before := m.now.Text
	m.mu.Unlock()
	switch {
	case len(before) == 0:
	case len(bytes.TrimSpace(text)) == 0:
		return errors.New("the settings file is empty; write {} for defaults alone")
	case before[len(before)-1] == '\n' && text[len(text)-1] != '\n':
		return errors.New("the settings file does not end with a line break and may be truncated; add one if the file is complete")
	case origin == OriginFile && len(text) < len(before) && bytes.HasPrefix(before, text) && len(bytes.TrimSpace(before[len(text):])) > 0:
		return errors.New("the settings file is a prefix of its previous contents and may be half-written; run kvpilot reload if it is complete")
	}
	return nil
}

// Rollback applies the settings of an earlier version. The error may also be an ErrNoVersion.
func (m *Manager[C]) Rollback(ctx context.Context, number uint64, ask Request) (Result, error) {
	m.reloading.Lock()
	defer m.reloading.Unlock()
	ask.Origin = OriginRollback
	result, err := m.rollback(number, ask)
	m.note(ctx, ask, result, err)
	return result, err
}

func (m *Manager[C]) rollback(number uint64, ask Request) (Result, error) {
	if m.ended() {
		return Result{}, ErrClosed
	}
	m.mu.Lock()
	at := slices.IndexFunc(m.versions, func(v version[C]) bool { return v.Number == number })
	var old Loaded[C]
	if at >= 0 {
		old = m.versions[at].loaded
	}
	first, latest, text := m.versions[0].Number, m.versions[len(m.versions)-1].Number, m.now.Text
	m.mu.Unlock()
	if at < 0 {
		return Result{}, fmt.Errorf("%w: %d; versions %d to %d are remembered", ErrNoVersion, number, first, latest)
	}
	old.Files = m.params.Source.Files(old.Config)
	old.Text = text // of the file as it is: only a change of it is news
	return m.apply(ask, old, number)
}

func (m *Manager[C]) ended() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

// apply checks next and puts it in force. m.reloading is held, so that m.now does not change.
func (m *Manager[C]) apply(ask Request, next Loaded[C], rollbackOf uint64) (Result, error) {
	m.mu.Lock()
	now := m.now
	current := m.versions[len(m.versions)-1].Version
	m.mu.Unlock()
	changes := append(m.params.Source.Diff(now.Config, next.Config), changedFiles(now.Files, next.Files)...)
	var errs []error
	for _, s := range m.params.Sections {
		if part, ok := s.Part.(Checker[C]); ok {
			errs = append(errs, part.Check(now.Config, next.Config))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Result{}, &Refused{err}
	}
	result := Result{Version: current, Changes: changes, Unchanged: true}
	if ask.DryRun {
		return result, nil
	}
	if len(changes) == 0 {
		m.mu.Lock()
		m.now.Text, m.now.Files, m.last, m.waiting = next.Text, next.Files, time.Now(), 0
		m.mu.Unlock()
		return result, nil
	}
	merged := m.params.Source.Merge(now.Config, next.Config)
	if err := m.run(now.Config, merged, changes); err != nil {
		return Result{}, err
	}
	result.Unchanged = false
	result.Version = Version{
		Number: current.Number + 1, Time: time.Now(), Origin: ask.Origin, Who: ask.Who,
		Hash: m.params.Source.Hash(merged), Changes: changes, RollbackOf: rollbackOf,
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.versions = append(m.versions, version[C]{result.Version, next})
	if extra := len(m.versions) - m.params.Keep; extra > 0 {
		m.versions = slices.Delete(m.versions, 0, extra)
	}
	m.now = Loaded[C]{Config: merged, Text: next.Text, Files: next.Files}
	m.last, m.waiting = result.Version.Time, len(result.waiting())
	return result, nil
}

// run applies the sections that the changes are for; when one fails, those before it go back.
func (m *Manager[C]) run(now, next C, changes []Change) error {
	var done []Section[C]
	for _, s := range m.params.Sections {
		if !s.touched(changes) {
			continue
		}
		err := s.Part.Apply(now, next)
		if err == nil {
			done = append(done, s)
			continue
		}
		var stuck []error
		for _, d := range slices.Backward(done) {
			if err := d.Part.Apply(next, now); err != nil {
				stuck = append(stuck, fmt.Errorf("%s: %w", d.Name, err))
			}
		}
		return &failed{Section: s.Name, Err: err, Stuck: errors.Join(stuck...)}
	}
	return nil
}

// touched reports whether one of the changes that need no restart is the section's.
func (s *Section[C]) touched(changes []Change) bool {
	return slices.ContainsFunc(changes, func(c Change) bool {
		return !c.Restart && slices.ContainsFunc(s.Paths, func(path string) bool { return Below(path, c.Path) })
	})
}

// Below reports whether a setting is the setting at path, or part of it.
func Below(path, setting string) bool {
	rest, ok := strings.CutPrefix(setting, path)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// changedFiles lists the files whose contents differ while the setting does not: Diff reports a setting that differs.
func changedFiles(now, next map[string]string) []Change {
	var list []Change
	for _, path := range slices.Sorted(maps.Keys(next)) {
		if before, known := now[path]; known && before != next[path] {
			list = append(list, Change{Path: path, Old: "the file as it was", New: "the file's new contents"})
		}
	}
	return list
}

// note logs and counts the result of a reload.
func (m *Manager[C]) note(ctx context.Context, ask Request, r Result, err error) {
	var refused *Refused
	log := m.log.With("origin", ask.Origin, "who", ask.Who, "dry_run", ask.DryRun)
	switch {
	case errors.Is(err, ErrClosed):
		m.metrics.Reloads.Add(resultClosed)
		return
	case errors.As(err, &refused), errors.Is(err, ErrNoVersion):
		m.metrics.Reloads.Add(resultRefused)
		log.Error("settings rejected, the old ones stay in force", "error", err)
		return
	case err != nil:
		m.metrics.Reloads.Add(resultFailed)
		log.Error("settings not applied", "error", err)
		return
	case ask.DryRun:
		m.metrics.Reloads.Add(resultChecked)
		return
	case r.Unchanged:
		m.metrics.Reloads.Add(resultUnchanged)
		log.Info("settings are unchanged", "version", r.Version.Number)
		return
	}
	m.metrics.Reloads.Add(resultApplied)
	var lines []string
	for _, c := range r.Changes {
		lines = append(lines, c.String())
	}
	log.Info("settings applied", "version", r.Version.Number, "hash", r.Version.Hash, "changes", lines)
	if waiting := r.waiting(); len(waiting) > 0 {
		log.Warn("some settings need a restart", "settings", len(waiting))
	}
}
