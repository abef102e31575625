package callers

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
)

type digest [sha256.Size]byte

// set is all credentials that are accepted at one time. It is immutable but for the caches in tokens.
type set struct {
	open bool
	// salt makes the time of a look-up independent of how much of a key was guessed.
	salt   [16]byte
	plain  map[digest]*entry // by salted digest
	hashed map[digest]*entry // by salted digest of the SHA-256 that the file has
	rules  []rule
	tokens *tokens // nil: none are accepted
}

// entry is the router's record of a key.
type entry struct {
	caller  caller.Caller
	expires time.Time // zero: never
}

func newSet(c Config, list []Key) (*set, error) {
	s := &set{open: c.Open(), plain: make(map[digest]*entry, len(list)), hashed: map[digest]*entry{}}
	rand.Read(s.salt[:])
	for _, k := range list {
		p, err := k.parse()
		if err != nil {
			return nil, err
		}
		to, d := s.plain, s.digest(p.plain)
		if p.hashed {
			to, d = s.hashed, s.again(p.hash)
		}
		if other := to[d]; other != nil && other.caller != p.caller {
			return nil, errors.New("the key of " + p.caller.Tenant + " is " + other.caller.Tenant + "'s too")
		}
		to[d] = p.entry
	}
	for _, c := range c.Certificates {
		r, err := c.compile()
		if err != nil {
			return nil, err
		}
		s.rules = append(s.rules, r)
	}
	return s, nil
}

func (s *set) digest(key string) digest {
	buf := make([]byte, 0, 128)
	return sha256.Sum256(append(append(buf, s.salt[:]...), key...))
}

// again returns the salted digest of a digest.
func (s *set) again(d digest) digest {
	var buf [len(s.salt) + len(d)]byte
	copy(buf[:], s.salt[:])
	copy(buf[len(s.salt):], d[:])
	return sha256.Sum256(buf[:])
}

// unsalted is the digest that a file may hold.
func unsalted(key string) digest {
	buf := make([]byte, 0, 128)
	return sha256.Sum256(append(buf, key...))
}

// identify returns the holder of a request's credentials. A key or a token counts before a certificate: a wrong one is
// rejected even with a valid certificate.
func (s *set) identify(c *Credentials, now time.Time) (*caller.Caller, error) {
	key := c.Key
	if scheme, token, ok := strings.Cut(c.Authorization, " "); ok && strings.EqualFold(scheme, "Bearer") {
		key = strings.TrimSpace(token)
	}
	if key == "" {
		if state := verified(c.TLS); state != nil && len(s.rules) > 0 {
			return s.byCertificate(state, now)
		}
		return nil, s.missing()
	}
	d := s.digest(key)
	e := s.plain[d]
	if e == nil && len(s.hashed) > 0 {
		e = s.hashed[s.again(unsalted(key))]
	}
	switch {
	case e == nil && s.tokens != nil && strings.Count(key, ".") == 2:
		return s.tokens.identify(d, key, now)
	case e == nil:
		return nil, apierror.New(apierror.Unauthenticated, "the API key is unknown", nil)
	case !e.expires.IsZero() && !now.Before(e.expires):
		return nil, apierror.New(apierror.Unauthenticated, "the API key has expired", nil)
	}
	return &e.caller, nil
}

// missing says what a request without credentials needs.
func (s *set) missing() error {
	switch {
	case len(s.plain)+len(s.hashed) > 0:
		return apierror.New(apierror.Unauthenticated, "an API key is needed: send it as Authorization: Bearer KEY", nil)
	case s.tokens != nil:
		return apierror.New(apierror.Unauthenticated, "a token is needed: send it as Authorization: Bearer TOKEN", nil)
	}
	return apierror.New(apierror.Unauthenticated, "a client certificate is needed", nil)
}

// actFor is a gateway's request for one of its tenants.
func actFor(who *caller.Caller, tenant string) (*caller.Caller, error) {
	if err := caller.CheckTenant(tenant); err != nil {
		return nil, apierror.New(apierror.Unauthenticated, "the gateway's request has no valid tenant", err)
	}
	return who.For(tenant), nil
}

// HeaderClient is the header in which a gateway passes on the credential of its client: Bearer, and a key or a token.
const HeaderClient = "X-Kvpilot-Client-Credential"

// lend is a gateway's request for the client that a credential names. The client needs a role of Default, and the gateway lends
// it the role Route: a client that may send requests is asked about by the proxy in front of it.
func (s *set) lend(gateway *caller.Caller, credential string, now time.Time) (*caller.Caller, error) {
	client, err := s.identify(&Credentials{Authorization: withScheme(credential)}, now)
	if err != nil {
		return nil, err
	}
	if !client.May(caller.Default) {
		return nil, apierror.New(apierror.PermissionDenied, "the client's credential needs the role infer", nil)
	}
	return gateway.Lend(client), nil
}

// withScheme adds the space that HTTP takes from the end of a header: without a key, the credential is missing.
func withScheme(credential string) string {
	if strings.Contains(credential, " ") {
		return credential
	}
	return credential + " "
}
