package callers_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/callers"
)

func shown(t testing.TB, dns []string, uris ...string) callers.Credentials {
	t.Helper()
	leaf := &x509.Certificate{DNSNames: dns, NotAfter: time.Now().Add(time.Hour)}
	for _, text := range uris {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		leaf.URIs = append(leaf.URIs, u)
	}
	return callers.Credentials{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf}}}}
}

func certConfig() callers.Config {
	c := config()
	c.Certificates = []callers.Certificate{
		{SAN: "spiffe://cluster.local/ns/monitoring/sa/prometheus", Tenant: "ops", Roles: []string{"observe"}},
		{SAN: "spiffe://cluster.local/ns/{tenant}/sa/*"},
		{SAN: "*.Edge.example", Tenant: "edge", Roles: []string{"infer", "gateway"}},
		{SAN: "{tenant}.clients.example"},
	}
	return c
}

func TestCertificates(t *testing.T) {
	cs := mustNew(t, certConfig(), callers.Params{})
	for name, tc := range map[string]struct {
		by   callers.Credentials
		want caller.Caller
	}{
		"the first rule":   {shown(t, nil, "spiffe://cluster.local/ns/monitoring/sa/prometheus"), caller.Caller{Tenant: "ops", Name: "spiffe://cluster.local/ns/monitoring/sa/prometheus", Roles: caller.Observe}},
		"tenant in a URI":  {shown(t, nil, "spiffe://cluster.local/ns/team-a/sa/app"), caller.Caller{Tenant: "team-a", Name: "spiffe://cluster.local/ns/team-a/sa/app", Roles: caller.Default}},
		"DNS, any case":    {shown(t, []string{"GW1.edge.example"}), caller.Caller{Tenant: "edge", Name: "gw1.edge.example", Roles: caller.Infer | caller.Gateway}},
		"tenant in a name": {shown(t, []string{"x.y", "acme.clients.example"}), caller.Caller{Tenant: "acme", Name: "acme.clients.example", Roles: caller.Default}},
	} {
		tc.want.By = caller.ByCertificate
		if got, err := cs.Identify(tc.by); err != nil || *got != tc.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	expired := shown(t, []string{"acme.clients.example"})
	expired.TLS.PeerCertificates[0].NotAfter = time.Now().Add(-time.Second)
	unverified := shown(t, []string{"acme.clients.example"})
	unverified.TLS.VerifiedChains = nil
	withKey := shown(t, []string{"acme.clients.example"})
	withKey.Key = "not-a-key"
	for name, by := range map[string]callers.Credentials{
		"no certificate": {}, "plain TLS": {TLS: &tls.ConnectionState{}}, "expired meanwhile": expired, "not verified": unverified,
		"two labels":                            shown(t, []string{"a.b.clients.example"}),
		"two segments":                          shown(t, nil, "spiffe://cluster.local/ns/a/b/sa/app"),
		"another domain":                        shown(t, nil, "spiffe://cluster.local.evil/ns/a/sa/app"),
		"a longer name":                         shown(t, []string{"acme.clients.example.evil"}),
		"a DNS name that looks like a URI rule": shown(t, []string{"spiffe://cluster.local/ns/a/sa/app"}),
		"a wrong key beside it":                 withKey,
	} {
		if who, err := cs.Identify(by); err == nil {
			t.Errorf("%s: %+v", name, who)
		}
	}
	gateway := shown(t, []string{"a.edge.example"})
	gateway.Tenant = "customer"
	if who, err := cs.Identify(gateway); err != nil || who.Tenant != "customer" || who.Roles != caller.Infer {
		t.Errorf("a gateway: %+v, %v", who, err)
	}
}

func TestCertificateSettingsThatAreWrong(t *testing.T) {
	for name, bad := range map[string]callers.Certificate{
		"no name": {Tenant: "a"}, "no tenant": {SAN: "*.example"}, "two tenants": {SAN: "{tenant}.{tenant}.example"},
		"a bad tenant": {SAN: "a.example", Tenant: "a\n"}, "a bad role": {SAN: "a.example", Tenant: "a", Roles: []string{"root"}},
	} {
		c := config()
		c.Certificates = []callers.Certificate{bad}
		if c.Validate() == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func FuzzCertificate(f *testing.F) {
	f.Add("spiffe://cluster.local/ns/{tenant}/sa/*", "spiffe://cluster.local/ns/a/sa/b", "x.example")
	f.Add("{tenant}.example", "https://a/", "a.example")
	f.Add("a+b(c.{tenant}", "", "a+b(c.d")
	f.Fuzz(func(t *testing.T, pattern, uri, name string) {
		c := config()
		c.Certificates = []callers.Certificate{{SAN: pattern}}
		if c.Validate() != nil {
			return
		}
		cs, err := callers.New(c, callers.Params{})
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(uri)
		if err != nil {
			return
		}
		leaf := &x509.Certificate{DNSNames: []string{name}, URIs: []*url.URL{u}, NotAfter: time.Now().Add(time.Hour)}
		state := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf}}}
		if who, err := cs.Identify(callers.Credentials{TLS: state}); err == nil && caller.CheckTenant(who.Tenant) != nil {
			t.Errorf("%q with %q, %q gives the tenant %q", pattern, uri, name, who.Tenant)
		}
	})
}
