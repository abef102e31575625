package callers

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/kit/cache"
)

const (
	// longestToken bounds a token in bytes.
	longestToken = 16 << 10
	// tokenMemory bounds the memory of verified tokens, about 20,000 of them.
	tokenMemory = 8 << 20
)

// tokens checks signed tokens.
type tokens struct {
	config     JWT
	algorithms []jose.SignatureAlgorithm
	roleMap    map[string]caller.Roles
	defaults   caller.Roles
	keys       *keySet
	known      *cache.Cache[verifiedToken]
}

// verifiedToken is a token with a valid signature and valid claims.
type verifiedToken struct {
	digest  digest
	caller  caller.Caller
	expires time.Time // leeway included
	by      *keys     // the token is valid as long as these keys are current
}

// newTokens makes tokens. j must be valid.
func newTokens(j JWT, keys *keySet) *tokens {
	t := &tokens{config: j, keys: keys, known: cache.New[verifiedToken](tokenMemory)}
	for _, a := range j.Algorithms {
		t.algorithms = append(t.algorithms, jose.SignatureAlgorithm(a))
	}
	t.defaults, _ = caller.ParseRoles(j.DefaultRoles) // Validate has checked them
	if len(j.RoleMap) > 0 {
		t.roleMap = map[string]caller.Roles{}
		for value, names := range j.RoleMap {
			t.roleMap[value], _ = caller.ParseRoles(splitNames(names)) // as above
		}
	}
	return t
}

// pendingError rejects a token with an unknown key while the key set is being read.
type pendingError struct {
	public error
	done   <-chan struct{}
}

// Error implements error.
func (e *pendingError) Error() string { return e.public.Error() }

// Unwrap returns the public error.
func (e *pendingError) Unwrap() error { return e.public }

func rejectToken(why string, cause error) error {
	return apierror.New(apierror.Unauthenticated, why, cause)
}

// identify returns the holder of a token. d is its digest.
func (t *tokens) identify(d digest, raw string, now time.Time) (*caller.Caller, error) {
	present := t.keys.current.Load()
	key := cache.Key{Hi: binary.LittleEndian.Uint64(d[:8]), Lo: binary.LittleEndian.Uint64(d[8:16])}
	if v := t.known.Get(key); v != nil && v.digest == d && v.by == present && now.Before(v.expires) {
		return &v.caller, nil
	}
	v, err := t.verify(raw, present, now)
	if err != nil {
		return nil, err
	}
	v.digest = d
	t.known.Put(key, v, len(v.caller.Tenant)+len(v.caller.Name)+128)
	return &v.caller, nil
}

func (t *tokens) verify(raw string, present *keys, now time.Time) (*verifiedToken, error) {
	if len(raw) > longestToken {
		return nil, rejectToken("the token is too long", nil)
	}
	parsed, err := jwt.ParseSigned(raw, t.algorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return nil, rejectToken("the token must have one signature of an accepted algorithm", err)
	}
	header := parsed.Headers[0]
	candidates := present.candidates(header.KeyID, header.Algorithm)
	if len(candidates) == 0 {
		public := rejectToken("the token's key is unknown", nil)
		if done := t.keys.want(now); done != nil {
			return nil, &pendingError{public, done}
		}
		return nil, public
	}
	var claims jwt.Claims
	var all map[string]any
	err = errors.New("no key")
	for _, k := range candidates {
		if err = parsed.Claims(k.Key, &claims, &all); err == nil {
			break
		}
	}
	if err != nil {
		return nil, rejectToken("the token's signature is wrong", err)
	}
	return t.accept(&claims, all, present, now)
}

// accept checks the claims of a token with a valid signature.
func (t *tokens) accept(claims *jwt.Claims, all map[string]any, present *keys, now time.Time) (*verifiedToken, error) {
	if claims.Expiry == nil {
		return nil, rejectToken("the token has no expiry (exp)", nil)
	}
	err := claims.ValidateWithLeeway(jwt.Expected{Issuer: t.config.Issuer, AnyAudience: t.config.Audiences, Time: now}, t.config.Leeway)
	switch {
	case errors.Is(err, jwt.ErrExpired):
		return nil, rejectToken("the token has expired", err)
	case errors.Is(err, jwt.ErrNotValidYet), errors.Is(err, jwt.ErrIssuedInTheFuture):
		return nil, rejectToken("the token is not valid yet", err)
	case err != nil:
		return nil, rejectToken("the token is not for this router (iss, aud)", err)
	}
	tenant, _ := claim(all, t.config.TenantClaim).(string)
	if err := caller.CheckTenant(tenant); err != nil {
		return nil, rejectToken("the token's claim "+t.config.TenantClaim+" has no valid tenant", err)
	}
	name, _ := claim(all, t.config.NameClaim).(string)
	v := &verifiedToken{
		caller:  caller.Caller{Tenant: tenant, Name: name, Roles: t.roles(all), By: caller.ByToken},
		expires: claims.Expiry.Time().Add(t.config.Leeway), by: present,
	}
	return v, nil
}

// roles reads the roles of a token. Values that are no roles are skipped: other services read the claim too.
func (t *tokens) roles(all map[string]any) caller.Roles {
	var set caller.Roles
	for _, value := range texts(claim(all, t.config.RolesClaim)) {
		if t.roleMap != nil {
			set |= t.roleMap[value]
		} else if r, known := caller.ParseRole(value); known {
			set |= r
		}
	}
	if set == 0 {
		return t.defaults
	}
	return set
}

// claim returns the value of a claim by its name, or by a path of names with dots between.
func claim(all map[string]any, name string) any {
	if v, found := all[name]; found || name == "" {
		return v
	}
	first, rest, found := strings.Cut(name, ".")
	if !found {
		return nil
	}
	inner, _ := all[first].(map[string]any)
	return claim(inner, rest)
}

// texts are the texts of a list, or the words of one text.
func texts(v any) []string {
	switch v := v.(type) {
	case string:
		return strings.Fields(v)
	case []any:
		var list []string
		for _, item := range v {
			if text, ok := item.(string); ok {
				list = append(list, text)
			}
		}
		return list
	}
	return nil
}

// candidates are the keys that may have made a signature: by their id where the token says one.
func (k *keys) candidates(id, algorithm string) []jose.JSONWebKey {
	if k == nil {
		return nil
	}
	var list []jose.JSONWebKey
	for _, key := range k.list {
		if (id == "" || key.KeyID == id) && (key.Algorithm == "" || key.Algorithm == algorithm) && slices.Contains(algorithmsOf(key), jose.SignatureAlgorithm(algorithm)) {
			list = append(list, key)
		}
	}
	return list
}
