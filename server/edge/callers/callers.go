package callers

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

const (
	// lookEvery is how often files are checked.
	lookEvery = time.Second
	// updateTimeout bounds the time in which Update reads a new key set.
	updateTimeout = 5 * time.Second
	// tokenWait bounds the time for which a request waits for a key set that is being read.
	tokenWait = 2 * time.Second
)

// Params are the parts that Callers works with. All may be missing.
type Params struct {
	Scope scope.Scope
	// Reads may be nil.
	Reads Reads
	// NoFollow turns off reading a changed file of keys again; only Update does.
	NoFollow bool
}

// Reads records that credentials were read.
type Reads interface {
	// Read is called after a file of keys or a key set was read again, or could not be.
	Read(source Source, err error)
}

// Source names the kind of setting that was read.
type Source string

// The sources.
const (
	KeysFile Source = "keys_file"
	JWKS     Source = "jwks"
)

// Callers identifies callers. Make one with New.
type Callers struct {
	log       *slog.Logger
	metrics   *metrics
	clock     scope.Clock // by which tokens and keys end
	reads     Reads
	noFollow  bool
	anonymous *caller.Caller
	set       atomic.Pointer[set]
	wake      chan struct{} // holds one token when a key set is wanted

	mu     sync.Mutex
	config Config // guarded by mu
	keys   *file  // guarded by mu: the keys file; nil without one
}

// New makes Callers. It reads the files that c names; a URL is read by Run. c must be valid.
func New(c Config, p Params) (*Callers, error) {
	cs := &Callers{
		log: p.Scope.Log(), metrics: newMetrics(p.Scope.Meters()), clock: p.Scope.Clock(), reads: p.Reads, noFollow: p.NoFollow, anonymous: caller.Anonymous(), wake: make(chan struct{}, 1),
	}
	return cs, cs.replace(c, false)
}

// Update replaces all credentials by c's, or none of them when it returns an error. Callers that are identified
// already stay so until their call ends. A key set from the same source is kept; another one is read first.
func (cs *Callers) Update(c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	return cs.replace(c, true)
}

func (cs *Callers) replace(c Config, fetch bool) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	var f *file
	list := c.Keys
	if c.KeysFile != "" {
		f = &file{path: c.KeysFile}
		f.read()
		more, err := readKeys(c.KeysFile)
		if err != nil {
			return err
		}
		list = append(list[:len(list):len(list)], more...)
	}
	s, err := newSet(c, list)
	if err != nil {
		return err
	}
	if s.tokens, err = cs.tokensFor(c.JWT, fetch); err != nil {
		return err
	}
	cs.config, cs.keys = c, f
	cs.set.Store(s)
	return nil
}

// tokensFor returns the checker of tokens, with the key set of the present one where that has the same source. mu is held.
func (cs *Callers) tokensFor(j JWT, fetch bool) (*tokens, error) {
	if j.Issuer == "" {
		return nil, nil
	}
	old := cs.set.Load()
	if old != nil && old.tokens != nil {
		was := old.tokens
		if reflect.DeepEqual(was.config, j) {
			return was, nil
		}
		if was.keys.from == sourceOf(j) {
			return newTokens(j, was.keys), nil
		}
	}
	keys, err := newKeySet(j, cs.wake)
	if err != nil {
		return nil, err
	}
	if j.JWKSFile != "" || fetch {
		ctx, cancel := context.WithTimeout(context.Background(), updateTimeout)
		defer cancel()
		if err := keys.read(ctx, cs.clock.Now()); err != nil {
			return nil, err
		}
	}
	return newTokens(j, keys), nil
}

// Open reports whether no credentials are asked for.
func (cs *Callers) Open() bool { return cs.set.Load().open }

// Credentials are a request's proofs of its sender.
type Credentials struct {
	// Key is the header X-Api-Key, Authorization the header of that name, which counts before it.
	Key, Authorization string
	// Tenant and Client are the headers that gateways send: the tenant's name, or the credential of the gateway's client.
	Tenant, Client string
	// TLS is the connection's state; nil without TLS.
	TLS *tls.ConnectionState
}

// Identify returns the sender of a request, or an error of the reason Unauthenticated. It does not wait.
func (cs *Callers) Identify(c Credentials) (*caller.Caller, error) {
	s := cs.set.Load()
	if s.open {
		return cs.anonymous, nil
	}
	now := cs.clock.Now()
	who, err := s.identify(&c, now)
	if err != nil {
		return nil, err
	}
	switch {
	case who.Roles&caller.Gateway == 0:
	case c.Client != "":
		return s.lend(who, c.Client, now)
	case c.Tenant != "":
		return actFor(who, c.Tenant)
	}
	return who, nil
}

// IdentifyWaiting is Identify for callers that may wait: a token with an unknown key waits for the key set.
func (cs *Callers) IdentifyWaiting(ctx context.Context, c Credentials) (*caller.Caller, error) {
	who, err := cs.Identify(c)
	pending, ok := errors.AsType[*pendingError](err)
	if !ok {
		return who, err
	}
	limit := time.NewTimer(tokenWait)
	defer limit.Stop()
	select {
	case <-pending.done:
		return cs.Identify(c)
	case <-limit.C:
	case <-ctx.Done():
	}
	return nil, err
}

// Run reads files and key sets again when they change, until ctx ends.
func (cs *Callers) Run(ctx context.Context) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		cs.readKeySet(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-cs.wake:
		case <-ticker.C:
			if !cs.noFollow {
				cs.readKeysFile()
			}
		}
	}
}

// readKeysFile reads the file of keys again when it has changed.
func (cs *Callers) readKeysFile() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.keys == nil || !cs.keys.changed() {
		return
	}
	cs.keys.read()
	more, err := readKeys(cs.config.KeysFile)
	var s *set
	if err == nil {
		s, err = newSet(cs.config, append(cs.config.Keys[:len(cs.config.Keys):len(cs.config.Keys)], more...))
	}
	if err == nil {
		s.tokens = cs.set.Load().tokens
		cs.set.Store(s)
		cs.log.Info("API keys were reloaded", "file", cs.config.KeysFile, "keys", len(more))
	} else {
		cs.log.Error("API keys cannot be read; the previous ones stay in force", "error", err)
	}
	cs.metrics.read(KeysFile, err)
	cs.record(KeysFile, err)
}

// readKeySet reads the key set of tokens when that is due.
func (cs *Callers) readKeySet(ctx context.Context) {
	t := cs.set.Load().tokens
	if t == nil || !t.keys.due(cs.clock.Now(), t.config.Refresh) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	before := t.keys.current.Load()
	err := t.keys.read(ctx, cs.clock.Now())
	if err != nil {
		cs.log.Error("the key set of tokens cannot be read; the previous one stays in force", "from", t.keys.from.String(), "error", err)
	}
	cs.metrics.read(JWKS, err)
	if err != nil || t.keys.current.Load() != before {
		cs.record(JWKS, err)
	}
}

func (cs *Callers) record(source Source, err error) {
	if cs.reads != nil {
		cs.reads.Read(source, err)
	}
}
