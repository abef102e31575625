package callers

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	// minRefetch is the shortest time between two readings of a key set, however many tokens name unknown keys.
	minRefetch = 10 * time.Second
	// maxKeySet bounds a key set in bytes, maxKeys in keys.
	maxKeySet = 1 << 20
	maxKeys   = 64
	// The sizes of RSA keys in bits: shorter ones are weak, checking longer ones takes long.
	shortestRSA = 2048
	longestRSA  = 8192
)

// source is where a key set comes from.
type source struct{ url, file, ca string }

func sourceOf(j JWT) source { return source{j.JWKSURL, j.JWKSFile, j.CAFile} }

// String implements fmt.Stringer.
func (s source) String() string {
	if s.url != "" {
		return s.url
	}
	return s.file
}

// keys is one reading of a key set.
type keys struct {
	list []jose.JSONWebKey
	sum  [sha256.Size]byte // of its text
}

// keySet is the issuer's keys, read again in time.
type keySet struct {
	from    source
	client  *http.Client
	current atomic.Pointer[keys] // nil until it was read
	wake    chan<- struct{}

	mu     sync.Mutex
	file   *file         // guarded by mu: of a key set in a file
	tried  time.Time     // guarded by mu: when it was last read, or could not be
	failed bool          // guarded by mu: the last time
	wanted chan struct{} // guarded by mu: closed after the next reading; nil when none is asked for
}

func newKeySet(j JWT, wake chan<- struct{}) (*keySet, error) {
	roots, err := j.roots()
	if err != nil {
		return nil, err
	}
	k := &keySet{from: sourceOf(j), wake: wake}
	if k.from.file != "" {
		k.file = &file{path: k.from.file}
		return k, nil
	}
	k.client = &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, DisableKeepAlives: true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("the server redirects: set jwt.jwks_url to the final URL")
		},
	}
	return k, nil
}

// due reports whether the set is to be read now.
func (k *keySet) due(now time.Time, refresh time.Duration) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.wanted != nil:
		return true
	case k.file != nil:
		return k.file.changed()
	case k.failed || k.current.Load() == nil:
		return now.Sub(k.tried) >= minRefetch
	}
	return now.Sub(k.tried) >= refresh
}

// want asks for the set to be read, because a token names a key that is not in it. The channel closes when that was done; it
// is nil when the set was read a moment ago.
func (k *keySet) want(now time.Time) <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.wanted == nil {
		if now.Sub(k.tried) < minRefetch {
			return nil
		}
		k.wanted = make(chan struct{})
		select {
		case k.wake <- struct{}{}:
		default: // Run looks anyway
		}
	}
	return k.wanted
}

// read reads the set. When that fails, the one before stays.
func (k *keySet) read(ctx context.Context, now time.Time) error {
	if k.file != nil {
		k.mu.Lock()
		k.file.read()
		k.mu.Unlock()
	}
	text, err := k.text(ctx)
	var fresh *keys
	if err == nil {
		fresh, err = parseKeySet(text)
	}
	if err != nil {
		err = fmt.Errorf("read the key set %s: %w", k.from, err)
	} else if old := k.current.Load(); old == nil || old.sum != fresh.sum {
		k.current.Store(fresh)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tried, k.failed = now, err != nil
	if k.wanted != nil {
		close(k.wanted)
		k.wanted = nil
	}
	return err
}

func (k *keySet) text(ctx context.Context) ([]byte, error) {
	if k.from.file != "" {
		file, err := os.Open(k.from.file)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // only read
		return bounded(file)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.from.url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	resp, err := k.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // only read
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the status is %d", resp.StatusCode)
	}
	return bounded(resp.Body)
}

func bounded(from io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxKeySet+1))
	if err == nil && len(text) > maxKeySet {
		err = fmt.Errorf("it has more than %d bytes", maxKeySet)
	}
	return text, err
}

// parseKeySet takes the keys that can check signatures; sets may have others too.
func parseKeySet(text []byte) (*keys, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, fmt.Errorf("it is not a JSON Web Key Set: %w", err)
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("it has %d keys, at most %d are read", len(set.Keys), maxKeys)
	}
	out := &keys{sum: sha256.Sum256(text)}
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) != nil || !key.Valid() || key.Use != "" && key.Use != "sig" {
			continue
		}
		if key = key.Public(); len(algorithmsOf(key)) > 0 {
			out.list = append(out.list, key)
		}
	}
	if len(out.list) == 0 {
		return nil, errors.New("it has no key that checks signatures (RSA of 2048 to 8192 bits, EC, Ed25519)")
	}
	return out, nil
}

// algorithmsOf returns the algorithms that a public key can check. Symmetric keys have none.
func algorithmsOf(key jose.JSONWebKey) []jose.SignatureAlgorithm {
	switch k := key.Key.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits >= shortestRSA && bits <= longestRSA {
			return asymmetric()[:6]
		}
	case *ecdsa.PublicKey:
		switch k.Curve.Params().BitSize {
		case 256:
			return []jose.SignatureAlgorithm{jose.ES256}
		case 384:
			return []jose.SignatureAlgorithm{jose.ES384}
		case 521:
			return []jose.SignatureAlgorithm{jose.ES512}
		}
	case ed25519.PublicKey:
		return []jose.SignatureAlgorithm{jose.EdDSA}
	}
	return nil
}

// Examine reads the issuer's key set once and returns how many of its keys can check signatures. It changes nothing.
func (j JWT) Examine(ctx context.Context) (usable int, err error) {
	k, err := newKeySet(j, make(chan struct{}, 1))
	if err != nil {
		return 0, err
	}
	if err := k.read(ctx, time.Now()); err != nil {
		return 0, err
	}
	return len(k.current.Load().list), nil
}
