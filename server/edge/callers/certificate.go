package callers

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
)

const tenantWord = "{tenant}"

// rule is a Certificate that is ready to match.
type rule struct {
	pattern *regexp.Regexp
	uri     bool
	tenant  string // empty: the pattern's group
	roles   caller.Roles
}

func (c Certificate) compile() (rule, error) {
	r := rule{uri: strings.Contains(c.SAN, "://"), tenant: c.Tenant}
	if c.SAN == "" {
		return r, errors.New("san: is missing")
	}
	segment, san := `[^/]+`, c.SAN
	if !r.uri {
		segment, san = `[^.]+`, strings.ToLower(san)
	}
	if n := strings.Count(san, tenantWord); n > 1 || n == 0 && c.Tenant == "" {
		return r, fmt.Errorf("san: %q must have %s once, or tenant must be set", c.SAN, tenantWord)
	}
	text := regexp.QuoteMeta(san)
	text = strings.Replace(text, regexp.QuoteMeta(tenantWord), "("+segment+")", 1)
	text = strings.ReplaceAll(text, `\*`, segment)
	var err error
	if r.pattern, err = regexp.Compile(`^` + text + `$`); err != nil {
		return r, fmt.Errorf("san: %w", err)
	}
	if c.Tenant != "" {
		if err := caller.CheckTenant(c.Tenant); err != nil {
			return r, fmt.Errorf("tenant: %w", err)
		}
	}
	if r.roles, err = caller.ParseRoles(c.Roles); err != nil {
		return r, fmt.Errorf("roles: %w", err)
	}
	if r.roles == 0 {
		r.roles = caller.Default
	}
	return r, nil
}

// match returns the tenant of a name; empty when the rule is not for it.
func (r rule) match(san string, uri bool) string {
	if r.uri != uri {
		return ""
	}
	found := r.pattern.FindStringSubmatch(san)
	switch {
	case found == nil:
		return ""
	case r.tenant != "":
		return r.tenant
	}
	return found[1]
}

// byCertificate identifies the holder of a verified client certificate. Rules count in their order; a URI is looked at before
// DNS names.
func (s *set) byCertificate(state *tls.ConnectionState, now time.Time) (*caller.Caller, error) {
	leaf := state.PeerCertificates[0]
	if now.After(leaf.NotAfter) { // the connection may be older
		return nil, apierror.New(apierror.Unauthenticated, "the client certificate has expired", nil)
	}
	for _, r := range s.rules {
		tenant, san := r.tenantOf(leaf)
		if tenant == "" {
			continue
		}
		if err := caller.CheckTenant(tenant); err != nil {
			return nil, apierror.New(apierror.Unauthenticated, "the client certificate has no valid tenant", err)
		}
		return &caller.Caller{Tenant: tenant, Name: san, Roles: r.roles, By: caller.ByCertificate}, nil
	}
	return nil, apierror.New(apierror.Unauthenticated, "the client certificate matches no tenant", nil)
}

func (r rule) tenantOf(leaf *x509.Certificate) (tenant, san string) {
	for _, u := range leaf.URIs {
		san = u.String()
		if tenant = r.match(san, true); tenant != "" {
			return tenant, san
		}
	}
	for _, name := range leaf.DNSNames {
		san = strings.ToLower(name)
		if tenant = r.match(san, false); tenant != "" {
			return tenant, san
		}
	}
	return "", ""
}

// verified returns the state of a connection with a verified client certificate; nil otherwise.
func verified(state *tls.ConnectionState) *tls.ConnectionState {
	if state == nil || len(state.VerifiedChains) == 0 || len(state.PeerCertificates) == 0 {
		return nil
	}
	return state
}
