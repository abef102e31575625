package callers_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// issuer signs tokens.
type issuer struct {
	rsa *rsa.PrivateKey
	ec  *ecdsa.PrivateKey
	ed  ed25519.PrivateKey
}

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	e, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, d, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{r, e, d}
}

func (i *issuer) set(t testing.TB) []byte {
	t.Helper()
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: i.rsa.Public(), KeyID: "r1", Use: "sig"}, {Key: i.ec.Public(), KeyID: "e1", Algorithm: "ES256"}, {Key: i.ed.Public(), KeyID: "d1"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

type claims map[string]any

// good are the claims of a token that is accepted, with changes; nil removes one.
func good(now time.Time, change claims) claims {
	c := claims{"iss": "https://issuer.test", "aud": "kvpilot", "exp": now.Add(time.Hour).Unix(), "sub": "svc-1", "tenant": "team"}
	for name, v := range change {
		if c[name] = v; v == nil {
			delete(c, name)
		}
	}
	return c
}

func sign(t testing.TB, alg jose.SignatureAlgorithm, key any, kid string, c claims) string {
	t.Helper()
	opts := (&jose.SignerOptions{}).WithType("JWT")
	if kid != "" {
		opts = opts.WithHeader("kid", kid)
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, opts)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	text, err := out.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// forged is a token of a header and a signature that no honest issuer makes.
func forged(header string, c claims, signer func(signed string) []byte) string {
	payload, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	enc := base64.RawURLEncoding
	signed := enc.EncodeToString([]byte(header)) + "." + enc.EncodeToString(payload)
	return signed + "." + enc.EncodeToString(signer(signed))
}

func tokenConfig(t testing.TB, i *issuer) callers.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(file, i.set(t), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config()
	c.JWT.Issuer, c.JWT.Audiences, c.JWT.JWKSFile = "https://issuer.test", []string{"kvpilot", "other-name"}, file
	return c
}

func TestTokens(t *testing.T) {
	i, now := newIssuer(t), time.Now()
	c := tokenConfig(t, i)
	c.Keys = []callers.Key{key("keyed", "a.dotted.key")}
	cs := mustNew(t, c, callers.Params{})
	team := caller.Caller{Tenant: "team", Name: "svc-1", Roles: caller.Default, By: caller.ByToken}
	withRoles := func(r caller.Roles) caller.Caller {
		who := team
		who.Roles = r
		return who
	}
	for name, tc := range map[string]struct {
		token string
		want  caller.Caller
	}{
		"RSA":               {sign(t, jose.RS256, i.rsa, "r1", good(now, nil)), team},
		"RSA-PSS":           {sign(t, jose.PS256, i.rsa, "r1", good(now, nil)), team},
		"EC":                {sign(t, jose.ES256, i.ec, "e1", good(now, nil)), team},
		"Ed25519":           {sign(t, jose.EdDSA, i.ed, "d1", good(now, nil)), team},
		"no key id":         {sign(t, jose.ES256, i.ec, "", good(now, nil)), team},
		"another audience":  {sign(t, jose.ES256, i.ec, "e1", good(now, claims{"aud": []string{"x", "other-name"}})), team},
		"within the leeway": {sign(t, jose.ES256, i.ec, "e1", good(now, claims{"exp": now.Add(-10 * time.Second).Unix()})), team},
		"roles":             {sign(t, jose.ES256, i.ec, "e1", good(now, claims{"roles": []string{"observe", "else"}})), withRoles(caller.Observe)},
		"roles as words":    {sign(t, jose.ES256, i.ec, "e1", good(now, claims{"roles": "infer admin"})), withRoles(caller.Infer | caller.Admin)},
		"roles of no kind":  {sign(t, jose.ES256, i.ec, "e1", good(now, claims{"roles": 7})), team},
		"a key with 2 dots": {"a.dotted.key", caller.Caller{Tenant: "keyed", Name: "keyed", Roles: caller.Default, By: caller.ByKey}},
	} {
		for try := range 2 { // the second comes from the memory
			if got, err := cs.Identify(bearer(tc.token)); err != nil || *got != tc.want {
				t.Errorf("%s, try %d: %+v, %v; want %+v", name, try, got, err, tc.want)
			}
		}
	}
}

func TestTokensThatAreRefused(t *testing.T) {
	i, other, now := newIssuer(t), newIssuer(t), time.Now()
	cs := mustNew(t, tokenConfig(t, i), callers.Params{})
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must(x509.MarshalPKIXPublicKey(i.rsa.Public()))})
	hs := func(secret []byte) func(string) []byte {
		return func(signed string) []byte {
			m := hmac.New(sha256.New, secret)
			m.Write([]byte(signed))
			return m.Sum(nil)
		}
	}
	rs := func(key *rsa.PrivateKey) func(string) []byte {
		return func(signed string) []byte {
			sum := sha256.Sum256([]byte(signed))
			return must(rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:]))
		}
	}
	honest := sign(t, jose.ES256, i.ec, "e1", good(now, nil))
	embedded, _ := json.Marshal(jose.JSONWebKey{Key: other.rsa.Public(), KeyID: "r1"})
	ec := func(change claims) string { return sign(t, jose.ES256, i.ec, "e1", good(now, change)) }
	for name, tc := range map[string]struct{ token, words string }{
		"alg none":                    {forged(`{"alg":"none"}`, good(now, nil), func(string) []byte { return nil }), "signature of an accepted algorithm"},
		"alg None":                    {forged(`{"alg":"None","kid":"r1"}`, good(now, nil), func(string) []byte { return nil }), "signature of an accepted algorithm"},
		"HS with the public key":      {forged(`{"alg":"HS256","kid":"r1"}`, good(now, nil), hs(public)), "signature of an accepted algorithm"},
		"RS with another's key":       {sign(t, jose.RS256, other.rsa, "r1", good(now, nil)), "signature is wrong"},
		"RS with an embedded key":     {forged(`{"alg":"RS256","kid":"r1","jwk":`+string(embedded)+`}`, good(now, nil), rs(other.rsa)), "signature is wrong"},
		"a critical header":           {forged(`{"alg":"RS256","kid":"r1","crit":["x"],"x":1}`, good(now, nil), rs(i.rsa)), "signature is wrong"},
		"an algorithm not allowed":    {sign(t, jose.RS512, i.rsa, "r1", good(now, nil)), "signature of an accepted algorithm"},
		"an RSA algorithm, an EC key": {forged(`{"alg":"RS256","kid":"e1"}`, good(now, nil), rs(i.rsa)), "key is unknown"},
		"an unknown key":              {sign(t, jose.ES256, i.ec, "e2", good(now, nil)), "key is unknown"},
		"a changed payload":           {strings.Replace(honest, ".", ".e30", 1), "signature is wrong"},
		"no signature":                {honest[:strings.LastIndexByte(honest, '.')+1], ""},
		"expired":                     {ec(claims{"exp": now.Add(-time.Minute).Unix()}), "has expired"},
		"no end":                      {ec(claims{"exp": nil}), "no expiry"},
		"not yet":                     {ec(claims{"nbf": now.Add(time.Minute).Unix()}), "not valid yet"},
		"issued tomorrow":             {ec(claims{"iat": now.Add(24 * time.Hour).Unix()}), "not valid yet"},
		"another issuer":              {ec(claims{"iss": "https://issuer.test/"}), "not for this router"},
		"no issuer":                   {ec(claims{"iss": nil}), "not for this router"},
		"another audience":            {ec(claims{"aud": "grafana"}), "not for this router"},
		"no audience":                 {ec(claims{"aud": nil}), "not for this router"},
		"no tenant":                   {ec(claims{"tenant": nil}), "has no valid tenant"},
		"an empty tenant":             {ec(claims{"tenant": ""}), "has no valid tenant"},
		"a tenant that is a list":     {ec(claims{"tenant": []string{"team"}}), "has no valid tenant"},
		"a tenant with a line end":    {ec(claims{"tenant": "a\nb"}), "has no valid tenant"},
		"too long":                    {ec(claims{"x": strings.Repeat("y", 20<<10)}), "too long"},
	} {
		who, err := cs.Identify(bearer(tc.token))
		t.Run(name, func(t *testing.T) { refused(t, who, err, tc.words) })
	}
	who, err := cs.Identify(callers.Credentials{})
	refused(t, who, err, "a token is needed")
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestClaimsInObjectsAndMappedRoles(t *testing.T) {
	i, now := newIssuer(t), time.Now()
	c := tokenConfig(t, i)
	c.JWT.TenantClaim, c.JWT.RolesClaim, c.JWT.NameClaim = "https://example.test/org", "realm_access.roles", "email"
	c.JWT.RoleMap = map[string]string{"platform": "admin", "dash": "observe,infer"}
	c.JWT.DefaultRoles = nil
	cs := mustNew(t, c, callers.Params{})
	for name, tc := range map[string]struct {
		roles []string
		want  caller.Roles
	}{"mapped": {[]string{"dash"}, caller.Observe | caller.Infer}, "not mapped": {[]string{"admin"}, 0}, "both": {[]string{"x", "platform"}, caller.Admin}} {
		token := sign(t, jose.ES256, i.ec, "e1", good(now, claims{"https://example.test/org": "acme", "email": "a@b", "realm_access": claims{"roles": tc.roles}}))
		got, err := cs.Identify(bearer(token))
		if err != nil || got.Tenant != "acme" || got.Name != "a@b" || got.Roles != tc.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// A verified token is remembered until it ends, and until the keys change.
func TestAKnownTokenEndsInTime(t *testing.T) {
	i, now := newIssuer(t), time.Now()
	cs := mustNew(t, tokenConfig(t, i), callers.Params{Scope: scope.Scope{}.At(clockFunc(func() time.Time { return now }))})
	by := bearer(sign(t, jose.ES256, i.ec, "e1", good(now, claims{"exp": now.Add(time.Minute).Unix()})))
	if _, err := cs.Identify(by); err != nil {
		t.Fatal(err)
	}
	now = now.Add(89 * time.Second)
	if _, err := cs.Identify(by); err != nil {
		t.Errorf("within the leeway: %v", err)
	}
	now = now.Add(3 * time.Second)
	who, err := cs.Identify(by)
	refused(t, who, err, "has expired")
}

// endpoint publishes a key set.
type endpoint struct {
	*httptest.Server
	text  atomic.Pointer[[]byte]
	asked atomic.Int64
}

func newEndpoint(t *testing.T, text []byte) *endpoint {
	e := &endpoint{}
	e.text.Store(&text)
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		e.asked.Add(1)
		if text := *e.text.Load(); text != nil {
			_, _ = w.Write(text)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(e.Close)
	return e
}

func TestKeysAreRotated(t *testing.T) {
	first, second := newIssuer(t), newIssuer(t)
	e := newEndpoint(t, first.set(t))
	c := config()
	c.JWT.Issuer, c.JWT.Audiences, c.JWT.JWKSURL = "https://issuer.test", []string{"kvpilot"}, e.URL
	offset := atomic.Int64{}
	clock := func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }
	cs := mustNew(t, c, callers.Params{Scope: scope.Scope{}.At(clockFunc(clock))})
	if e.asked.Load() != 0 {
		t.Error("New asks the issuer")
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- cs.Run(ctx) }()
	old := bearer(sign(t, jose.ES256, first.ec, "e1", good(time.Now(), nil)))
	if _, err := cs.IdentifyWaiting(ctx, old); err != nil {
		// Run may not have asked for it yet when the token came: the second time it has.
		eventually(t, func() bool { _, err := cs.Identify(old); return err == nil })
	}
	two := second.set(t)
	text := []byte(strings.NewReplacer(`"e1"`, `"e2"`, `"r1"`, `"r2"`, `"d1"`, `"d2"`).Replace(string(two)))
	e.text.Store(&text)
	fresh := bearer(sign(t, jose.ES256, second.ec, "e2", good(time.Now(), nil)))
	asked := e.asked.Load()
	for n := range 50 { // a flood of unknown keys has the set read no more often
		if _, err := cs.Identify(bearer(sign(t, jose.ES256, second.ec, fmt.Sprint("x", n), good(time.Now(), nil)))); err == nil {
			t.Error("an unknown key is taken")
		}
	}
	if n := e.asked.Load() - asked; n != 0 {
		t.Errorf("%d readings within 10 s of the last", n)
	}
	offset.Add(int64(11 * time.Second))
	if who, err := cs.IdentifyWaiting(ctx, fresh); err != nil || who.Tenant != "team" {
		t.Errorf("a token by a new key: %+v, %v", who, err)
	}
	who, err := cs.Identify(old) // its key is gone, and so is the memory of it
	refused(t, who, err, "unknown")
	broken := []byte(nil)
	e.text.Store(&broken)
	offset.Add(int64(2 * time.Hour))
	eventually(t, func() bool { return e.asked.Load() >= asked+2 })
	if _, err := cs.Identify(fresh); err == nil {
		t.Error("the token outlives its exp")
	}
	if _, err := cs.Identify(bearer(sign(t, jose.ES256, second.ec, "e2", good(clock(), nil)))); err != nil {
		t.Errorf("the issuer is down, its keys are forgotten: %v", err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within 10 s")
		}
	}
}

func TestUpdateReadsANewKeySetFirst(t *testing.T) {
	i := newIssuer(t)
	e := newEndpoint(t, nil)
	cs := mustNew(t, config(key("a", "first-key-1")), callers.Params{})
	c := config()
	c.JWT.Issuer, c.JWT.Audiences, c.JWT.JWKSURL = "https://issuer.test", []string{"kvpilot"}, e.URL
	if cs.Update(c) == nil {
		t.Error("a key set that cannot be read is taken")
	}
	if _, err := cs.Identify(bearer("first-key-1")); err != nil {
		t.Error(err)
	}
	text := i.set(t)
	e.text.Store(&text)
	if err := cs.Update(c); err != nil {
		t.Fatal(err)
	}
	by := bearer(sign(t, jose.ES256, i.ec, "e1", good(time.Now(), nil)))
	if _, err := cs.Identify(by); err != nil {
		t.Error(err)
	}
	asked := e.asked.Load()
	c.JWT.DefaultRoles = []string{"observe"}
	if err := cs.Update(c); err != nil {
		t.Fatal(err)
	}
	if who, err := cs.Identify(by); err != nil || who.Roles != caller.Observe || e.asked.Load() != asked {
		t.Errorf("after new roles: %+v, %v, %d readings", who, err, e.asked.Load()-asked)
	}
}

func TestAKeySetInAFileIsReadAgain(t *testing.T) {
	first, second := newIssuer(t), newIssuer(t)
	c := tokenConfig(t, first)
	synctest.Test(t, func(t *testing.T) {
		cs := mustNew(t, c, callers.Params{})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- cs.Run(ctx) }()
		for n, text := range [][]byte{second.set(t), []byte("{"), first.set(t)} {
			if err := os.WriteFile(c.JWT.JWKSFile, text, 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			by := []*issuer{second, second, first}[n]
			if _, err := cs.Identify(bearer(sign(t, jose.ES256, by.ec, "e1", good(time.Now(), nil)))); err != nil {
				t.Errorf("file %d: %v", n, err)
			}
		}
		stop()
		<-done
	})
}

func TestKeySetsThatAreRefused(t *testing.T) {
	weak := must(rsa.GenerateKey(rand.Reader, 1024))
	symmetric := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: []byte("0123456789abcdef0123456789abcdef"), KeyID: "s"}}}
	small := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: weak.Public(), KeyID: "w"}}}
	encrypting := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: newIssuer(t).rsa.Public(), KeyID: "w", Use: "enc"}}}
	for name, text := range map[string][]byte{
		"no JSON": []byte("<html>"), "no keys": []byte(`{"keys":[]}`), "symmetric": must(json.Marshal(symmetric)), "weak": must(json.Marshal(small)),
		"for encryption": must(json.Marshal(encrypting)), "large": []byte(`{"keys":[], "x":"` + strings.Repeat("y", 1<<20) + `"}`),
		"many": []byte(`{"keys":[` + strings.Repeat("{},", 64) + `{}]}`),
	} {
		c := tokenConfig(t, newIssuer(t))
		if err := os.WriteFile(c.JWT.JWKSFile, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := callers.New(c, callers.Params{}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestTokenSettingsThatAreWrong(t *testing.T) {
	for name, change := range map[string]func(*callers.JWT){
		"no audience":        func(j *callers.JWT) { j.Audiences = nil },
		"an empty audience":  func(j *callers.JWT) { j.Audiences = []string{""} },
		"no key set":         func(j *callers.JWT) { j.JWKSFile = "" },
		"two key sets":       func(j *callers.JWT) { j.JWKSURL = "https://issuer.test/jwks" },
		"plain http":         func(j *callers.JWT) { j.JWKSFile, j.JWKSURL = "", "http://issuer.test/jwks" },
		"none":               func(j *callers.JWT) { j.Algorithms = []string{"none"} },
		"a shared secret":    func(j *callers.JWT) { j.Algorithms = []string{"RS256", "HS256"} },
		"no algorithm":       func(j *callers.JWT) { j.Algorithms = nil },
		"much leeway":        func(j *callers.JWT) { j.Leeway = time.Hour },
		"frequent":           func(j *callers.JWT) { j.Refresh = time.Second },
		"an unknown role":    func(j *callers.JWT) { j.RoleMap = map[string]string{"x": "root"} },
		"an unknown default": func(j *callers.JWT) { j.DefaultRoles = []string{"root"} },
		"no tenant claim":    func(j *callers.JWT) { j.TenantClaim = "" },
		"no issuer":          func(j *callers.JWT) { j.Issuer = "" },
	} {
		c := tokenConfig(t, newIssuer(t))
		if change(&c.JWT); c.Validate() == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func FuzzToken(f *testing.F) {
	i := newIssuer(f)
	cs := mustNew(f, tokenConfig(f, i), callers.Params{})
	honest := sign(f, jose.ES256, i.ec, "e1", good(time.Now(), nil))
	f.Add(honest)
	f.Add(forged(`{"alg":"none"}`, good(time.Now(), nil), func(string) []byte { return nil }))
	f.Add("a.b.c")
	f.Add(`{"payload":"e30","signatures":[]}..`)
	f.Fuzz(func(t *testing.T, token string) {
		who, err := cs.Identify(bearer(token))
		if err == nil && strings.TrimSpace(token) != honest {
			t.Errorf("%q is taken for %+v", token, who)
		}
	})
}

func BenchmarkIdentifyKnownToken(b *testing.B) {
	i := newIssuer(b)
	benchIdentify(b, mustNew(b, tokenConfig(b, i), callers.Params{}), bearer(sign(b, jose.RS256, i.rsa, "r1", good(time.Now(), nil))))
}

func BenchmarkIdentifyNewToken(b *testing.B) {
	i := newIssuer(b)
	for alg, key := range map[jose.SignatureAlgorithm]any{jose.RS256: i.rsa, jose.ES256: i.ec, jose.EdDSA: i.ed} {
		b.Run(string(alg), func(b *testing.B) {
			kid := map[jose.SignatureAlgorithm]string{jose.RS256: "r1", jose.ES256: "e1", jose.EdDSA: "d1"}[alg]
			list := make([]callers.Credentials, 512)
			for n := range list {
				list[n] = bearer(sign(b, alg, key, kid, good(time.Now(), claims{"jti": fmt.Sprint(n)})))
			}
			c := tokenConfig(b, i)
			var cs *callers.Callers
			n := 0
			for b.Loop() {
				if n%len(list) == 0 {
					b.StopTimer()
					cs = mustNew(b, c, callers.Params{})
					b.StartTimer()
				}
				if _, err := cs.Identify(list[n%len(list)]); err != nil {
					b.Fatal(err)
				}
				n++
			}
		})
	}
}
