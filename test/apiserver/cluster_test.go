package apiserver

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
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// object is a JSON object.
type object = map[string]any

// namespace is where the objects of the tests are.
const namespace = "models"

// cluster is a running API server, and an administrator's client of it.
type cluster struct {
	t      *testing.T
	url    string
	admin  *http.Client
	ca     []byte
	dir    string // of the credentials of kvpilot's service account
	audit  string // the file of what was asked
	secret int    // the secret that the account's token is bound to
}

const adminToken = "admin-of-the-test"

// startCluster starts an API server with the definitions of the kinds, kvpilot's rights as deploy/kubernetes grants them, and credentials for
// its service account.
func startCluster(t *testing.T, args ...string) *cluster {
	t.Helper()
	binary := os.Getenv("APISERVER_BINARY")
	if binary == "" {
		t.Skip("SKIPPED: APISERVER_BINARY is not set: run make test-apiserver")
	}
	work := t.TempDir()
	c := &cluster{t: t, dir: filepath.Join(work, "account"), audit: filepath.Join(work, "audit.log")}
	port := freePort(t)
	c.url = fmt.Sprintf("https://127.0.0.1:%d", port)
	c.ca = certificates(t, work)
	write(t, filepath.Join(work, "tokens.csv"), adminToken+",admin,admin,\"system:masters\"\n")
	write(t, filepath.Join(work, "policy.yaml"), "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, users: [\"system:serviceaccount:models:kvpilot\"]}, {level: None}]\n")
	var log output
	cmd := exec.Command(binary, append([]string{
		fmt.Sprintf("--secure-port=%d", port), "--bind-address=127.0.0.1", "--tls-cert-file=" + filepath.Join(work, "tls.crt"), "--tls-private-key-file=" + filepath.Join(work, "tls.key"),
		"--token-auth-file=" + filepath.Join(work, "tokens.csv"), "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/24",
		"--service-account-issuer=https://cluster.test", "--service-account-key-file=" + filepath.Join(work, "sa.key"), "--service-account-signing-key-file=" + filepath.Join(work, "sa.key"),
		"--audit-policy-file=" + filepath.Join(work, "policy.yaml"), "--audit-log-path=" + c.audit, "--disable-admission-plugins=ServiceAccount", "--cert-dir=" + work,
	}, args...)...)
	cmd.Env = append(os.Environ(), "ETCD_DIR="+filepath.Join(work, "etcd"))
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		c.admin.CloseIdleConnections()
		_ = cmd.Process.Kill() // it may have ended
		<-ended
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.ca)
	c.admin = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if status, _ := c.try(http.MethodGet, "/readyz", "", nil); status == http.StatusOK {
			break
		}
		if len(ended) > 0 || time.Now().After(deadline) {
			t.Fatalf("the API server is not ready:\n%s", log.tail())
		}
	}
	c.define()
	c.grant()
	return c
}

// define adds the kinds: InferencePool as its project defines it, and those of llm-d.ai, the definitions of which no Go module has, with any fields.
func (c *cluster) define() {
	text, err := os.ReadFile(os.Getenv("INFERENCE_POOL_CRD"))
	if err != nil {
		c.t.Fatal(err)
	}
	const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	c.send(http.MethodPost, crds, "application/yaml", text)
	for kind, plural := range map[string]string{"InferenceObjective": "inferenceobjectives", "InferenceModelRewrite": "inferencemodelrewrites"} {
		c.put(crds, object{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": object{"name": plural + ".llm-d.ai"},
			"spec": object{
				"group": "llm-d.ai", "scope": "Namespaced", "names": object{"kind": kind, "plural": plural, "singular": strings.ToLower(kind)},
				"versions": []any{object{"name": "v1alpha2", "served": true, "storage": true, "schema": object{"openAPIV3Schema": object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
			},
		})
	}
	for _, path := range []string{pools, objectives, rewrites} {
		c.eventually("the kind of "+path+" is served", func() bool { status, _ := c.try(http.MethodGet, path, "", nil); return status == http.StatusOK })
	}
}

const (
	pods       = "/api/v1/namespaces/" + namespace + "/pods"
	pools      = "/apis/inference.networking.k8s.io/v1/namespaces/" + namespace + "/inferencepools"
	objectives = "/apis/llm-d.ai/v1alpha2/namespaces/" + namespace + "/inferenceobjectives"
	rewrites   = "/apis/llm-d.ai/v1alpha2/namespaces/" + namespace + "/inferencemodelrewrites"
)

// grant makes the namespace and kvpilot's account with the rights of deploy/kubernetes/base.
func (c *cluster) grant() {
	c.put("/api/v1/namespaces", object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": namespace}})
	text, err := os.ReadFile("../../deploy/kubernetes/base/rbac.yaml")
	if err != nil {
		c.t.Fatal(err)
	}
	at := map[string]string{
		"ServiceAccount": "/api/v1/namespaces/" + namespace + "/serviceaccounts",
		"Role":           "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace + "/roles",
		"RoleBinding":    "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace + "/rolebindings",
	}
	for document := range strings.SplitSeq("\n"+string(text), "\n---") {
		for kind, path := range at {
			if strings.Contains(document, "\nkind: "+kind+"\n") {
				c.send(http.MethodPost, path, "application/yaml", []byte(document))
			}
		}
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	write(c.t, filepath.Join(c.dir, "ca.crt"), string(c.ca))
	write(c.t, filepath.Join(c.dir, "namespace"), namespace)
	c.rotate()
}

// rotate gives the account a new token. The one before is void at once, because the secret that it was bound to is gone.
func (c *cluster) rotate() {
	c.t.Helper()
	const secrets = "/api/v1/namespaces/" + namespace + "/secrets"
	before := fmt.Sprint("bound-", c.secret)
	c.secret++
	name := fmt.Sprint("bound-", c.secret)
	made := c.put(secrets, object{"apiVersion": "v1", "kind": "Secret", "metadata": object{"name": name}})
	answer := c.put("/api/v1/namespaces/"+namespace+"/serviceaccounts/kvpilot/token", object{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": object{"expirationSeconds": 3600, "boundObjectRef": object{"apiVersion": "v1", "kind": "Secret", "name": name, "uid": made["metadata"].(object)["uid"]}},
	})
	write(c.t, filepath.Join(c.dir, "token"), answer["status"].(object)["token"].(string))
	if c.secret > 1 {
		c.send(http.MethodDelete, secrets+"/"+before, "", nil)
	}
}

// try asks as the administrator.
func (c *cluster) try(method, path, kind string, body []byte) (status int, answer []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	req.Header.Set("Content-Type", kind)
	resp, err := c.admin.Do(req)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err != nil {
		return 0, []byte(err.Error())
	}
	return resp.StatusCode, answer
}

// send asks as the administrator, and fails unless that is granted.
func (c *cluster) send(method, path, kind string, body []byte) object {
	c.t.Helper()
	status, answer := c.try(method, path, kind, body)
	if status < 200 || status > 299 {
		c.t.Fatalf("%s %s: %d %s", method, path, status, answer)
	}
	out := object{}
	if err := json.Unmarshal(answer, &out); err != nil {
		c.t.Fatal(err)
	}
	return out
}

// put makes an object.
func (c *cluster) put(path string, o object) object {
	c.t.Helper()
	return c.send(http.MethodPost, path, "application/json", text(c.t, o))
}

// patch changes an object.
func (c *cluster) patch(path string, o object) {
	c.t.Helper()
	c.send(http.MethodPatch, path, "application/merge-patch+json", text(c.t, o))
}

func text(t *testing.T, o object) []byte {
	t.Helper()
	body, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// asked counts what kvpilot's account asked for, by verb and status.
func (c *cluster) asked(verb, resource string, status int) (n int) {
	c.t.Helper()
	all, err := os.ReadFile(c.audit)
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range bytes.Lines(all) {
		var event struct {
			Verb           string
			Stage          string
			ObjectRef      struct{ Resource string }
			ResponseStatus struct{ Code int }
		}
		if json.Unmarshal(line, &event) == nil && event.Verb == verb && event.ObjectRef.Resource == resource && event.Stage != "RequestReceived" && event.ResponseStatus.Code == status {
			n++
		}
	}
	return n
}

func (c *cluster) eventually(what string, done func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// certificates writes an authority's certificate for 127.0.0.1 and a key for tokens, and returns the authority.
func certificates(t *testing.T, dir string) (ca []byte) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(err)
		return k
	}
	keyText := func(k *ecdsa.PrivateKey) string {
		der, err := x509.MarshalECPrivateKey(k)
		must(err)
		return string(block("EC PRIVATE KEY", der))
	}
	root, leaf := key(), key()
	template := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	rootDER, err := x509.CreateCertificate(rand.Reader, &template, &template, &root.PublicKey, root)
	must(err)
	server := x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "apiserver"}, NotBefore: template.NotBefore, NotAfter: template.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	leafDER, err := x509.CreateCertificate(rand.Reader, &server, &template, &leaf.PublicKey, root)
	must(err)
	write(t, filepath.Join(dir, "tls.crt"), string(block("CERTIFICATE", leafDER)))
	write(t, filepath.Join(dir, "tls.key"), keyText(leaf))
	write(t, filepath.Join(dir, "sa.key"), keyText(key()))
	return block("CERTIFICATE", rootDER)
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// output keeps what a process says.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.text.String()
	return all[max(0, len(all)-4000):]
}
