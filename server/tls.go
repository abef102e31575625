package server

import (
	"crypto/tls"
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

// certificate is a key pair on disk that is read again when its file changes, so that renewals
// need no restart.
type certificate struct {
	certFile, keyFile string

	mu      sync.Mutex
	pair    *tls.Certificate // guarded by mu
	changed time.Time        // guarded by mu
	looked  time.Time        // guarded by mu
}

// serverTLS is the TLS of the HTTP and gRPC doors; nil when they speak plain text.
func serverTLS(l config.Listen) (*tls.Config, error) {
	if l.TLSCert == "" {
		return nil, nil
	}
	c := &certificate{certFile: l.TLSCert, keyFile: l.TLSKey}
	if _, err := c.get(nil); err != nil {
		return nil, fmt.Errorf("listen.tls_cert: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get, NextProtos: []string{"h2", "http/1.1"}}, nil
}

// get returns the pair as it is on disk now; one that cannot be read leaves the last good one.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.pair != nil && now.Sub(c.looked) < recheck {
		return c.pair, nil
	}
	c.looked = now
	info, err := os.Stat(c.certFile)
	if err == nil && c.pair != nil && info.ModTime().Equal(c.changed) {
		return c.pair, nil
	}
	if err == nil {
		var pair tls.Certificate
		if pair, err = tls.LoadX509KeyPair(c.certFile, c.keyFile); err == nil {
			c.pair, c.changed = &pair, info.ModTime()
		}
	}
	if c.pair == nil {
		return nil, err
	}
	return c.pair, nil
}

// grpcCredentials makes the gRPC door speak TLS when the configuration names a certificate.
func grpcCredentials(l config.Listen) ([]grpc.ServerOption, error) {
	secure, err := serverTLS(l)
	if secure == nil || err != nil {
		return nil, err
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(secure))}, nil
}
