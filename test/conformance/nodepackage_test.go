package conformance

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/test/stack"
)

const nodeKey = "the-key-of-the-node-tests"

func TestNodePackage(t *testing.T) {
	node, folder := os.Getenv("KVPILOT_NODE"), os.Getenv("KVPILOT_NODE_PACKAGE")
	if node == "" {
		t.Skip("runs by make test-node")
	}
	s := startStack(t)
	cert, key := certificate(t)
	guarded := startGuarded(t, s, cert, key)
	env := append(os.Environ(), "KVPILOT_GRPC="+s.GRPC, "KVPILOT_HTTP="+s.HTTP, "KVPILOT_TLS_GRPC="+guarded, "KVPILOT_CA="+cert, "KVPILOT_KEY="+nodeKey)
	command := func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, node, args...)
		cmd.Dir, cmd.Env = folder, env
		return cmd
	}
	run := func(args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		out, err := command(ctx, args...).CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		if len(bytes.TrimSpace(out)) == 0 {
			t.Fatalf("%v wrote nothing", args)
		}
	}
	tests, err := filepath.Glob(filepath.Join(folder, "out", "tests", "*.test.js"))
	if err != nil || len(tests) < 4 {
		t.Fatalf("tests: %v, %v", tests, err)
	}
	for _, file := range tests { // one after the other: they look at the load of the same router
		run("--test", file)
	}
	example := func(name string) string { return filepath.Join("out", "examples", name) }
	run(example("chat.js"), s.HTTP, "sim")
	run(example("direct.js"), s.GRPC, "sim")
	snippets, err := filepath.Glob(filepath.Join(folder, example("snippet-*.js")))
	if err != nil || len(snippets) < 2 {
		t.Fatalf("snippets of the documents: %v, %v", snippets, err)
	}
	for _, snippet := range snippets {
		program, err := os.ReadFile(snippet)
		if err != nil {
			t.Fatal(err)
		}
		at := strings.NewReplacer("localhost:9090", s.GRPC, "localhost:8080", s.HTTP).Replace(string(program))
		if err := os.WriteFile(filepath.Join(folder, example("located.js")), []byte(at), 0o600); err != nil {
			t.Fatal(err)
		}
		run(example("located.js"))
	}

	// The watcher shows what the other examples do. It ends by itself; they are run until it does.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	watch := command(ctx, example("watch.js"), s.GRPC, "2")
	var out bytes.Buffer
	watch.Stdout, watch.Stderr = &out, &out
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- watch.Wait() }()
	for {
		select {
		case err := <-ended:
			t.Logf("%s", out.String())
			if err != nil || bytes.Count(out.Bytes(), []byte("\n")) != 2 {
				t.Fatalf("watch.js: %v", err)
			}
			return
		default:
			run(example("chat.js"), s.HTTP, "sim")
		}
	}
}

// startGuarded starts a second router before the same replicas, with TLS and a key, and returns its gRPC address.
func startGuarded(t *testing.T, s *stack.Stack, cert, key string) string {
	t.Helper()
	return stack.Start(t, stack.Options{Existing: s.Replicas, TLS: true, Configure: func(c *config.Config) {
		c.Listen.TLSCert, c.Listen.TLSKey = cert, key
		c.API.Keys = []grpcapi.Key{{Name: "node", Key: secret.New(nodeKey)}}
	}}).GRPC
}

// certificate writes a certificate of 127.0.0.1 and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "router"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, data []byte) string {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", encoded)
}
