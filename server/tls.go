package server

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/kvpilot/kvpilot/server/config"
)

// recheck is how often a certificate's files are looked at, at most.
const recheck = 10 * time.Second

// cached is a value read from a file, which is read again when the file changes, so that renewals need no restart. The value
// stays the same while the file does, so that TLS sessions can be resumed.
type cached[T any] struct {
	file string
	read func() (T, error)

	mu     sync.Mutex
	known  bool        // guarded by mu: value was read
	value  T           // guarded by mu
	from   os.FileInfo // guarded by mu: the file as it was read
	looked time.Time   // guarded by mu
}

// get returns the value of the file as it is now, or the last good one.
func (c *cached[T]) get() (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.known && now.Sub(c.looked) < recheck {
		return c.value, nil
	}
	c.looked = now
	info, err := os.Stat(c.file)
	if err == nil && (!c.known || !os.SameFile(info, c.from) || !info.ModTime().Equal(c.from.ModTime())) {
		var value T
		if value, err = c.read(); err == nil {
			c.known, c.value, c.from = true, value, info
		}
	}
	if c.known {
		return c.value, nil
	}
	return c.value, err
}

// serverTLS is the TLS of the HTTP and gRPC listeners; nil when they speak plain text.
func serverTLS(l config.Listen) (*tls.Config, error) {
	if l.TLSCert == "" {
		return nil, nil
	}
	return listenerTLS("listen.tls_cert", l.TLSCert, l.TLSKey, l.ClientCA, l.ClientAuth)
}

// adminTLS is the TLS of the admin listener; nil when it speaks plain text.
func adminTLS(l config.Listen) (*tls.Config, error) {
	switch {
	case !l.AdminTLS:
		return nil, nil
	case l.AdminTLSCert != "":
		return listenerTLS("listen.admin_tls_cert", l.AdminTLSCert, l.AdminTLSKey, l.ClientCA, l.AdminClientAuth)
	}
	return listenerTLS("listen.tls_cert", l.TLSCert, l.TLSKey, l.ClientCA, l.AdminClientAuth)
}

func listenerTLS(setting, certFile, keyFile, ca, auth string) (*tls.Config, error) {
	pair := &cached[*tls.Certificate]{file: certFile, read: func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		return &pair, err
	}}
	if _, err := pair.get(); err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	base := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.get() },
	}
	if ca == "" {
		return base, nil
	}
	base.ClientAuth = tls.VerifyClientCertIfGiven
	if auth == config.AuthRequired {
		base.ClientAuth = tls.RequireAndVerifyClientCert
	}
	// Each connection is checked with the authorities as they are on disk.
	checked := &cached[*tls.Config]{file: ca, read: func() (*tls.Config, error) {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		c := base.Clone()
		c.ClientCAs = x509.NewCertPool()
		if !c.ClientCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s holds no certificate in PEM", ca)
		}
		return c, nil
	}}
	now, err := checked.get()
	if err != nil {
		return nil, fmt.Errorf("listen.client_ca: %w", err)
	}
	out := now.Clone()
	out.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return checked.get() }
	return out, nil
}

// grpcCredentials makes the gRPC listener speak TLS when the configuration names a certificate.
func grpcCredentials(l config.Listen) ([]grpc.ServerOption, error) {
	secure, err := serverTLS(l)
	if secure == nil || err != nil {
		return nil, err
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(secure))}, nil
}
