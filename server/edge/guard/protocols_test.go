package guard_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/test/pki"
)

// serveGRPC serves gRPC's health, with TLS when there is one, and returns its address.
func serveGRPC(t *testing.T, secure *tls.Config, rest string) string {
	t.Helper()
	var options []grpc.ServerOption
	if secure != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(secure)))
	}
	s := grpc.NewServer(options...)
	healthpb.RegisterHealthServer(s, health.NewServer())
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- s.Serve(guard.NewProtocols(nil).Greet(l, guard.Greeting{Secure: secure != nil, REST: rest}))
	}()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// exchange sends text and returns the answer of HTTP/1.1 and what its body's error says.
func exchange(t *testing.T, address, text string) (status int, message string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%.20q: no answer of HTTP/1.1: %v", text, err)
	}
	defer resp.Body.Close()
	var body struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	if !resp.Close || body.Error.Code != "route_not_found" {
		t.Errorf("%.20q: closes %t, %+v", text, resp.Close, body)
	}
	return resp.StatusCode, body.Error.Message
}

func healthOf(t *testing.T, address string, creds credentials.TransportCredentials) error {
	t.Helper()
	c, err := grpc.NewClient(address, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = healthpb.NewHealthClient(c).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

func TestOtherProtocolsAtAGRPCAddressAreAnsweredInWords(t *testing.T) {
	authority := pki.New(t, "test")
	secure := authority.Server(pki.Cert{Names: []string{"localhost"}})
	secure.NextProtos = []string{"h2"}
	roots := &tls.Config{RootCAs: authority.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS12}
	post := "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat(" ", 100_000)

	plain := serveGRPC(t, nil, "0.0.0.0:8080")
	for _, text := range []string{"GET / HTTP/1.1\r\nHost: h\r\n\r\n", post} {
		code, message := exchange(t, plain, text)
		if want := "this is kvpilot's gRPC address (listen.grpc), which does not speak HTTP/1.1; the REST address is at port 8080 (listen.http); see "; code != http.StatusNotFound || !strings.HasPrefix(message, want) {
			t.Errorf("got %d %q, want 404 %q", code, message, want)
		}
	}
	if err := healthOf(t, plain, insecure.NewCredentials()); err != nil {
		t.Errorf("gRPC: %v", err)
	}
	if err := healthOf(t, plain, credentials.NewTLS(roots)); err == nil || !strings.Contains(err.Error(), "first record does not look like a TLS handshake") {
		t.Errorf("TLS at a plain address: %v", err)
	}

	encrypted := serveGRPC(t, secure, "")
	code, message := exchange(t, encrypted, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	if code != http.StatusNotFound || !strings.Contains(message, "there is no REST address (listen.http); both take TLS only") {
		t.Errorf("HTTP/1.1 at a TLS address: %d %q", code, message)
	}
	if code, message = exchange(t, encrypted, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); code != http.StatusBadRequest || !strings.Contains(message, "takes TLS only") {
		t.Errorf("plain HTTP/2 at a TLS address: %d %q", code, message)
	}
	if err := healthOf(t, encrypted, insecure.NewCredentials()); err == nil || !strings.Contains(err.Error(), "HTTP/1.1 header") {
		t.Errorf("plain gRPC at a TLS address: %v", err)
	}
	if err := healthOf(t, encrypted, credentials.NewTLS(roots)); err != nil {
		t.Errorf("gRPC with TLS: %v", err)
	}
}

func TestGRPCAtAnotherAddressIsRefusedAsGRPC(t *testing.T) {
	served := 0
	s := httptest.NewUnstartedServer(guard.NewProtocols(nil).RefuseGRPC("REST address (listen.http)", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served++
		w.WriteHeader(http.StatusNoContent)
	})))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	err := healthOf(t, s.Listener.Addr().String(), credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}))
	if status.Code(err) != codes.Unimplemented || status.Convert(err).Message() != "this is kvpilot's REST address (listen.http); gRPC is at its gRPC address (listen.grpc, by default port 9090)" || served > 0 {
		t.Errorf("got %v, served %d", err, served)
	}
	for _, contentType := range []string{"application/json", "application/grpc-web", ""} {
		resp, err := s.Client().Post(s.URL, contentType, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusNoContent {
			t.Errorf("%q: %d", contentType, resp.StatusCode)
		}
	}
}
