package callers

import (
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/kit/check"
)

// Config says which credentials are accepted. Without any, no caller is asked for one.
type Config struct {
	Keys         []Key
	KeysFile     string
	JWT          JWT
	Certificates []Certificate
	TenantHeader string
}

// Key is one API key.
type Key struct {
	// Name is the tenant to which requests with this key belong. A tenant may have several keys.
	Name string `yaml:"name"`
	// Key is the secret itself, or sha256: and its hex SHA-256 (kvpilot key new makes both).
	Key secret.String `yaml:"key"`
	// Admin is short for the role admin.
	Admin bool `yaml:"admin"`
	// Roles lists roles: infer, route, observe, admin, forward, gateway, steer. Empty: infer and route.
	Roles []string `yaml:"roles"`
	// Caller names the holder of the key within the tenant, for the audit log. Empty: the tenant's name.
	Caller string `yaml:"caller"`
	// Expires is the date (2027-01-31, UTC) or time (2027-01-31T12:00:00Z) of its end. Empty: never.
	Expires string `yaml:"expires"`
}

// JWT says which signed tokens are accepted. An empty Issuer accepts none.
type JWT struct {
	// Issuer is the iss that tokens must have. Empty: no tokens are accepted.
	Issuer string `yaml:"issuer"`
	// Audiences lists the accepted values of aud.
	Audiences []string `yaml:"audiences"`
	// JWKSURL is where the issuer publishes its keys (https, or http on the loopback). Exactly one of jwks_url and
	// jwks_file must be set.
	JWKSURL string `yaml:"jwks_url"`
	// JWKSFile names a file with the issuer's keys. It is read again when it changes.
	JWKSFile string `yaml:"jwks_file"`
	// CAFile names a PEM file with the certificate authorities of jwks_url's server. Empty: the system's.
	CAFile string `yaml:"ca_file"`
	// Refresh is the time between reads of jwks_url. An unknown key in a token causes an earlier read, at most every
	// 10 s.
	Refresh time.Duration `yaml:"refresh"`
	// Algorithms are the accepted signatures: RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA.
	Algorithms []string `yaml:"algorithms"`
	// Leeway is the accepted difference between clocks.
	Leeway time.Duration `yaml:"leeway"`
	// TenantClaim names the claim with the tenant. A dot leads into an object: realm_access.roles.
	TenantClaim string `yaml:"tenant_claim"`
	// NameClaim names the claim with the caller's name.
	NameClaim string `yaml:"name_claim"`
	// RolesClaim names the claim with the caller's roles (a list, or names separated by spaces).
	RolesClaim string `yaml:"roles_claim"`
	// RoleMap maps values of roles_claim to kvpilot's roles, separated by commas. Empty: the values are names of
	// roles.
	RoleMap map[string]string `yaml:"role_map"`
	// DefaultRoles lists the roles of tokens without roles.
	DefaultRoles []string `yaml:"default_roles"`
}

// Certificate gives the tenant and the roles of client certificates by a name in them.
type Certificate struct {
	// SAN is the URI (spiffe://cluster.local/ns/{tenant}/sa/*) or DNS name of a certificate. "*" and "{tenant}" stand
	// for one segment of a URI or one label of a DNS name.
	SAN string `yaml:"san"`
	// Tenant is the tenant. Empty: what {tenant} in san matches.
	Tenant string `yaml:"tenant"`
	// Roles lists roles, as a key's.
	Roles []string `yaml:"roles"`
}

// DefaultJWT has the defaults of JWT.
func DefaultJWT() JWT {
	return JWT{
		Refresh: 10 * time.Minute, Algorithms: []string{"RS256", "PS256", "ES256", "EdDSA"}, Leeway: 30 * time.Second,
		TenantClaim: "tenant", NameClaim: "sub", RolesClaim: "roles", DefaultRoles: []string{"infer", "route"},
	}
}

// Open reports whether no credentials are configured, so that none are asked for.
func (c Config) Open() bool {
	return len(c.Keys) == 0 && c.KeysFile == "" && c.JWT.Issuer == "" && len(c.Certificates) == 0
}

// Validate reports every bad field at once, named as the operator wrote it. It reads no file.
func (c Config) Validate() error {
	var errs []error
	for i, k := range c.Keys {
		if _, err := k.parse(); err != nil {
			errs = append(errs, fmt.Errorf("keys[%d]: %w", i, err))
		}
		if slices.ContainsFunc(c.Keys[:i], func(other Key) bool { return other.Key == k.Key }) {
			errs = append(errs, fmt.Errorf("keys[%d]: the key of %q is used more than once", i, k.Name))
		}
	}
	for i, rule := range c.Certificates {
		if _, err := rule.compile(); err != nil {
			errs = append(errs, fmt.Errorf("certificates[%d]: %w", i, err))
		}
	}
	if c.TenantHeader == "" || strings.ContainsFunc(c.TenantHeader, func(r rune) bool { return !isToken(r) }) {
		errs = append(errs, fmt.Errorf("tenant_header: %q must be the name of a header", c.TenantHeader))
	}
	errs = append(errs, check.Within("jwt", errors.Join(c.JWT.check()...)))
	return errors.Join(errs...)
}

func isToken(r rune) bool {
	return r == '-' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z'
}

func (j JWT) check() (errs []error) {
	if j.Issuer == "" {
		if j.JWKSURL != "" || j.JWKSFile != "" || len(j.Audiences) > 0 {
			errs = append(errs, errors.New("issuer: is missing"))
		}
		return errs
	}
	errs = append(errs,
		check.That(len(j.Audiences) > 0 && !slices.Contains(j.Audiences, ""), "audiences", "at least one is needed, and none may be empty: tokens for other services would be accepted"),
		check.That((j.JWKSURL == "") != (j.JWKSFile == ""), "jwks_url", "exactly one of jwks_url and jwks_file is needed"),
		checkURL(j.JWKSURL),
		check.AtLeast("refresh", j.Refresh, minRefetch),
		check.Between("leeway", j.Leeway, 0, 5*time.Minute),
		check.That(len(j.Algorithms) > 0, "algorithms", "at least one is needed"),
		check.NotEmpty("tenant_claim", j.TenantClaim),
	)
	for i, a := range j.Algorithms {
		if !slices.Contains(asymmetric(), jose.SignatureAlgorithm(a)) {
			errs = append(errs, fmt.Errorf("algorithms[%d]: %q must be one of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA", i, a))
		}
	}
	for value, names := range j.RoleMap {
		if _, err := caller.ParseRoles(splitNames(names)); err != nil {
			errs = append(errs, fmt.Errorf("role_map.%s: %w", value, err))
		}
	}
	if _, err := caller.ParseRoles(j.DefaultRoles); err != nil {
		errs = append(errs, fmt.Errorf("default_roles: %w", err))
	}
	return errs
}

// asymmetric lists the algorithms with a verifying key that cannot sign.
func asymmetric() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
	}
}

// checkURL rejects key sets that could be replaced on their way.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return nil
	case err != nil || u.Host == "":
		return errors.New("jwks_url: must be a URL such as https://issuer.example.com/jwks.json")
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && loopback(u.Hostname()):
		return nil
	}
	return errors.New("jwks_url: must be https, or http on the loopback")
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// roots reads CAFile; nil stands for the system's.
func (j JWT) roots() (*x509.CertPool, error) {
	if j.CAFile == "" {
		return nil, nil
	}
	text, err := os.ReadFile(j.CAFile)
	if err != nil {
		return nil, fmt.Errorf("jwt.ca_file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("jwt.ca_file: %s holds no certificate in PEM", j.CAFile)
	}
	return pool, nil
}

// parsed is a key as it is looked up.
type parsed struct {
	*entry
	plain  string
	hash   digest
	hashed bool
}

const (
	hashPrefix  = "sha256:"
	shortestKey = 8
	longestKey  = 4096
)

func (k Key) parse() (parsed, error) {
	var p parsed
	if err := caller.CheckTenant(k.Name); err != nil {
		return p, fmt.Errorf("name: %w", err)
	}
	roles, err := caller.ParseRoles(k.Roles)
	if err != nil {
		return p, fmt.Errorf("roles: %w", err)
	}
	switch {
	case k.Admin:
		roles |= caller.Admin
	case roles == 0:
		roles = caller.Default
	}
	p.entry = &entry{caller: caller.Caller{Tenant: k.Name, Name: k.Caller, Roles: roles, By: caller.ByKey}}
	if k.Caller == "" {
		p.caller.Name = k.Name
	}
	if p.expires, err = parseExpiry(k.Expires); err != nil {
		return p, fmt.Errorf("expires: %w", err)
	}
	text := k.Key.Reveal()
	if sum, found := strings.CutPrefix(text, hashPrefix); found {
		raw, err := hex.DecodeString(sum)
		if err != nil || len(raw) != len(p.hash) {
			return p, fmt.Errorf("the key of %q: %s must be followed by 64 hex digits", k.Name, hashPrefix)
		}
		copy(p.hash[:], raw)
		p.hashed = true
		return p, nil
	}
	p.plain = text
	switch {
	case len(text) < shortestKey:
		return p, fmt.Errorf("the key of %q is shorter than %d bytes", k.Name, shortestKey)
	case len(text) > longestKey:
		return p, fmt.Errorf("the key of %q is longer than %d bytes", k.Name, longestKey)
	}
	return p, nil
}

// parseExpiry reads a day or a moment; the zero time is never.
func parseExpiry(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.DateOnly, text); err == nil {
		return at, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("%q must be a date such as 2027-01-31 or a time such as 2027-01-31T12:00:00Z", text)
	}
	return at, nil
}

func splitNames(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}
