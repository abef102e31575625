package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// authority signs certificates for tests.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.key = newECKey(t)
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, "ca.pem", "CERTIFICATE", der)
	return a
}

func newECKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) write(t *testing.T, name, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(a.file(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// issue writes name.pem and name.key for the loopback, or with a URI.
func (a *authority) issue(t *testing.T, name, uri string) {
	t.Helper()
	a.n++
	key := newECKey(t)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(a.n + 1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if uri != "" {
		u, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		leaf.URIs = []*url.URL{u}
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, name+".pem", "CERTIFICATE", der)
	a.write(t, name+".key", "PRIVATE KEY", raw)
}

// client speaks TLS with the router, with the named certificate unless that is empty.
func (a *authority) client(t *testing.T, name string) *http.Client {
	t.Helper()
	text, err := os.ReadFile(a.file("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	c := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	c.RootCAs.AppendCertsFromPEM(text)
	if name != "" {
		pair, err := tls.LoadX509KeyPair(a.file(name+".pem"), a.file(name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	transport := &http.Transport{TLSClientConfig: c}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// fetch asks and returns the status and the body; 0 when there is no answer.
func fetch(c *http.Client, method, url, body string, header ...string) (int, string) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

const shortChat = `{"model":"sim-model","messages":[{"role":"user","content":"hi"}],"max_tokens":2}`

// Client certificates name the tenant at all three doors, and roles count at each.
func TestClientCertificates(t *testing.T) {
	a := newAuthority(t)
	a.issue(t, "server", "")
	a.issue(t, "team", "spiffe://test/ns/team-a/sa/app")
	a.issue(t, "watcher", "spiffe://test/ns/monitoring/sa/watcher")
	a.issue(t, "stranger", "spiffe://elsewhere/x")
	other := newAuthority(t)
	other.issue(t, "team", "spiffe://test/ns/team-a/sa/app")
	audited := filepath.Join(t.TempDir(), "audit.jsonl")
	plain := a.client(t, "")
	f := startFleet(t, fleetOptions{
		replicas: 1, noEvents: true,
		yaml: fmt.Sprintf("listen: {tls_cert: %s, tls_key: %s, admin_tls: true, client_ca: %s}\naudit: {file: %s}\n", a.file("server.pem"), a.file("server.key"), a.file("ca.pem"), audited) +
			"api:\n  certificates:\n    - {san: \"spiffe://test/ns/monitoring/sa/*\", tenant: ops, roles: [observe]}\n    - {san: \"spiffe://test/ns/{tenant}/sa/*\"}\n",
		ready: func(f *fleet) bool {
			code, _ := fetch(plain, "GET", "https://"+f.admin+"/readyz", "")
			return code == http.StatusOK
		},
	})
	model := simModel(t, a.client(t, "team"), f)
	chat := strings.Replace(shortChat, "sim-model", model, 1)
	for _, tc := range []struct {
		name         string
		by           *http.Client
		method, path string
		admin        bool
		want         int
	}{
		{"a tenant's chat", a.client(t, "team"), "POST", "/v1/chat/completions", false, 200},
		{"an observer's chat", a.client(t, "watcher"), "POST", "/v1/chat/completions", false, 403},
		{"no certificate", plain, "POST", "/v1/chat/completions", false, 401},
		{"no known name", a.client(t, "stranger"), "POST", "/v1/chat/completions", false, 401},
		{"a tenant's console", a.client(t, "team"), "GET", "/kvpilot/v1/decisions", true, 403},
		{"an observer's console", a.client(t, "watcher"), "GET", "/kvpilot/v1/decisions", true, 200},
		{"nobody's console", plain, "GET", "/kvpilot/v1/decisions", true, 401},
		{"nobody's metrics", plain, "GET", "/metrics", true, 200},
	} {
		at := f.http
		if tc.admin {
			at = f.admin
		}
		if code, text := fetch(tc.by, tc.method, "https://"+at+tc.path, chat); code != tc.want {
			t.Errorf("%s: %d %.200s, want %d", tc.name, code, text, tc.want)
		}
	}
	forged := a.client(t, "")
	pair, err := tls.LoadX509KeyPair(other.file("team.pem"), other.file("team.key"))
	if err != nil {
		t.Fatal(err)
	}
	forged.Transport.(*http.Transport).TLSClientConfig.Certificates = []tls.Certificate{pair}
	if code, text := fetch(forged, "POST", "https://"+f.http+"/v1/chat/completions", chat); code != 0 && code != 401 {
		t.Errorf("a certificate of another authority: %d %s", code, text)
	}
	// gRPC, through the commands.
	for name, want := range map[string]string{"team": "needs the role", "stranger": "matches no tenant", "watcher": ""} {
		var out, errOut bytes.Buffer
		err := run(context.Background(), []string{"replicas", "drain", "nobody", "--address", f.grpc, "--ca", a.file("ca.pem"), "--cert", a.file(name + ".pem"), "--cert-key", a.file(name + ".key")}, nil, &out, &errOut)
		if err == nil || want != "" && !strings.Contains(err.Error(), want) {
			t.Errorf("%s drains: %v", name, err)
		}
		out.Reset()
		err = run(context.Background(), []string{"replicas", "--address", f.grpc, "--ca", a.file("ca.pem"), "--cert", a.file(name + ".pem"), "--cert-key", a.file(name + ".key")}, nil, &out, &errOut)
		if (err == nil) != (name != "stranger") {
			t.Errorf("%s lists: %v", name, err)
		}
	}
	f.stop()
	events := auditOf(t, audited)
	for _, want := range []string{`"event":"refused","outcome":"UNAUTHENTICATED"`, `"event":"refused","outcome":"PERMISSION_DENIED","tenant":"team-a","caller":"spiffe://test/ns/team-a/sa/app","by":"certificate","address":"127.0.0.1"`, `"event":"read","outcome":"ok","tenant":"ops"`} {
		if !strings.Contains(events, want) {
			t.Errorf("the audit log has no %s:\n%s", want, events)
		}
	}
}

// simModel is the model that the replica serves; it comes with the first answer to a caller with a certificate.
func simModel(t *testing.T, by *http.Client, f *fleet) string {
	t.Helper()
	code, text := fetch(by, "GET", "https://"+f.http+"/v1/models", "")
	return firstModel(t, code, text)
}

func firstModel(t *testing.T, code int, text string) string {
	t.Helper()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list.Data) == 0 {
		t.Fatalf("models: %d %s", code, text)
	}
	return list.Data[0].ID
}

func auditOf(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %q", line)
		}
	}
	return string(text)
}

// A key that kvpilot key new makes works once its line is in the file, without a restart, and no longer when the line is gone.
// Tokens of an issuer work beside it; a gateway names tenants. The audit log has who did what, and no key.
func TestKeysAndTokensOfARunningRouter(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for five seconds")
	}
	t.Parallel()
	dir := t.TempDir()
	keysFile, audited := filepath.Join(dir, "keys"), filepath.Join(dir, "audit.jsonl")
	writeKeys := func(lines ...string) {
		t.Helper()
		if err := os.WriteFile(keysFile+".new", []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(keysFile+".new", keysFile); err != nil {
			t.Fatal(err)
		}
	}
	const operator, gateway = "ops:operator-key-1:admin", "edge:gateway-key-01 roles=infer,gateway"
	writeKeys(operator, gateway)
	signer := newECKey(t)
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: signer.Public(), KeyID: "k1", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) }))
	defer issuer.Close()
	f := startFleet(t, fleetOptions{
		replicas: 1, noEvents: true,
		yaml: fmt.Sprintf("reload: {watch: false} # the file of keys is then followed by itself\naudit: {file: %s}\napi:\n  keys_file: %s\n  jwt: {issuer: \"https://issuer.test\", audiences: [kvpilot], jwks_url: %s}\n", audited, keysFile, issuer.URL),
		ready: func(f *fleet) bool {
			code, text := fetch(http.DefaultClient, "GET", "http://"+f.http+"/kvpilot/v1/replicas", "", "X-Api-Key", "operator-key-1")
			return code == 200 && strings.Contains(text, "REPLICA_STATE_READY")
		},
	})
	model := firstModel(t, 0, second(fetch(http.DefaultClient, "GET", "http://"+f.http+"/v1/models", "", "X-Api-Key", "operator-key-1")))
	chat := func(header ...string) int {
		t.Helper()
		code, _ := fetch(http.DefaultClient, "POST", "http://"+f.http+"/v1/chat/completions", strings.Replace(shortChat, "sim-model", model, 1), header...)
		return code
	}
	var out bytes.Buffer
	if err := run(context.Background(), []string{"key", "new", "--tenant", "team", "--name", "ci"}, nil, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	key, line := after(t, out.String(), "key:"), after(t, out.String(), "line:")
	if chat("Authorization", "Bearer "+key) != 401 {
		t.Error("a key that is in no file works")
	}
	writeKeys(operator, gateway, line)
	f.eventually("the new key works", func() bool { return chat("Authorization", "Bearer "+key) == 200 })
	writeKeys(operator, gateway, "broken")
	time.Sleep(2500 * time.Millisecond) // longer than two looks at the file
	if chat("Authorization", "Bearer "+key) != 200 {
		t.Error("a broken file takes the keys away")
	}
	writeKeys(operator, gateway)
	f.eventually("the key is gone", func() bool { return chat("Authorization", "Bearer "+key) == 401 })
	if n := f.metric("kvpilot_callers_reads_total", `source="keys_file"`, `outcome="failed"`); n != 1 {
		t.Errorf("%v failed readings are counted", n)
	}

	token := func(change func(map[string]any)) string {
		claims := map[string]any{"iss": "https://issuer.test", "aud": "kvpilot", "tenant": "bank", "sub": "svc", "exp": time.Now().Add(time.Hour).Unix()}
		if change != nil {
			change(claims)
		}
		return signed(t, signer, claims)
	}
	if got := chat("Authorization", "Bearer "+token(nil)); got != 200 {
		t.Errorf("a token: %d", got)
	}
	if got := chat("Authorization", "Bearer "+token(func(c map[string]any) { c["aud"] = "other" })); got != 401 {
		t.Errorf("a token for another service: %d", got)
	}
	if got := chat("Authorization", "Bearer "+token(func(c map[string]any) { c["roles"] = []string{"observe"} })); got != 403 {
		t.Errorf("an observer's token: %d", got)
	}
	if got := chat("X-Api-Key", "gateway-key-01", "X-Kvpilot-Tenant", "customer-7"); got != 200 {
		t.Errorf("a gateway: %d", got)
	}
	_, list := fetch(http.DefaultClient, "GET", "http://"+f.http+"/kvpilot/v1/decisions", "", "X-Api-Key", "operator-key-1", "X-Request-Id", "audit-me")
	for _, tenant := range []string{`"team"`, `"bank"`, `"customer-7"`} {
		if !strings.Contains(list, `"tenant":`+tenant) {
			t.Errorf("no decision of the tenant %s: %.400s", tenant, list)
		}
	}
	if code, _ := fetch(http.DefaultClient, "POST", "http://"+f.http+"/kvpilot/v1/replicas/r0:drain", `{"reason":"new driver","force":true}`, "X-Api-Key", "operator-key-1"); code != 200 {
		t.Errorf("drain: %d", code)
	}
	f.stop()
	events := auditOf(t, audited)
	for _, want := range []string{
		`"event":"settings","outcome":"ok","target":"keys_file"`, `"event":"settings","outcome":"failed","target":"keys_file"`,
		`"event":"drain","outcome":"ok","tenant":"ops","caller":"ops","by":"key","address":"127.0.0.1"`, `"target":"r0"`, `"detail":"new driver"`,
		`"event":"read","outcome":"ok","tenant":"ops","caller":"ops","by":"key","address":"127.0.0.1","request_id":"audit-me"`,
		`"outcome":"PERMISSION_DENIED","tenant":"bank","caller":"svc","by":"token"`,
	} {
		if !strings.Contains(events, want) {
			t.Errorf("the audit log has no %s:\n%s", want, events)
		}
	}
	for _, secret := range []string{key, "operator-key-1", "gateway-key-01", "eyJ", "hi\"}"} {
		if strings.Contains(events, secret) {
			t.Errorf("the audit log shows %q", secret)
		}
	}
}

func second(_ int, text string) string { return text }

func after(t *testing.T, text, label string) string {
	t.Helper()
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, label); found {
			return strings.TrimSpace(rest)
		}
	}
	t.Fatalf("no %s in %q", label, text)
	return ""
}

func signed(t *testing.T, key *ecdsa.PrivateKey, claims map[string]any) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "k1"))
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
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
