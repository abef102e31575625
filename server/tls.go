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

// certificate is a key pair on disk that is read again when its file changes, so that renewals
// need no restart.
type certificate struct {
	certFile, keyFile string

	mu      sync.Mutex
	pair    *tls.Certificate // guarded by mu
	changed time.Time        // guarded by mu
	looked  time.Time        // guarded by mu
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
	c := &certificate{certFile: certFile, keyFile: keyFile}
	if _, err := c.get(nil); err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	base := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get, NextProtos: []string{"h2", "http/1.1"}}
	if ca == "" {
		return base, nil
	}
	clients := &clientCA{file: ca, base: base.Clone()}
	clients.base.ClientAuth = tls.VerifyClientCertIfGiven
	if auth == config.AuthRequired {
		clients.base.ClientAuth = tls.RequireAndVerifyClientCert
	}
	now, err := clients.get(nil)
	if err != nil {
		return nil, fmt.Errorf("listen.client_ca: %w", err)
	}
	out := now.Clone()
	out.GetConfigForClient = clients.get
	return out, nil
}

// clientCA gives each connection the TLS settings with the certificates that clients are checked with, as they are on disk
// now. The settings stay the same while the file does, so that sessions can be resumed.
type clientCA struct {
	file string
	base *tls.Config

	mu      sync.Mutex
	now     *tls.Config // guarded by mu
	changed os.FileInfo // guarded by mu
	looked  time.Time   // guarded by mu
}

// get implements tls.Config.GetConfigForClient. A file that cannot be read leaves the last good one.
func (c *clientCA) get(*tls.ClientHelloInfo) (*tls.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Now()
	if c.now != nil && at.Sub(c.looked) < recheck {
		return c.now, nil
	}
	c.looked = at
	info, err := os.Stat(c.file)
	if err == nil && (c.now == nil || !os.SameFile(info, c.changed) || !info.ModTime().Equal(c.changed.ModTime())) {
		var text []byte
		if text, err = os.ReadFile(c.file); err == nil {
			pool := x509.NewCertPool()
			if pool.AppendCertsFromPEM(text) {
				c.now, c.changed = c.base.Clone(), info
				c.now.ClientCAs = pool
			} else {
				err = fmt.Errorf("%s holds no certificate in PEM", c.file)
			}
		}
	}
	if c.now == nil {
		return nil, err
	}
	return c.now, nil
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

// grpcCredentials makes the gRPC listener speak TLS when the configuration names a certificate.
func grpcCredentials(l config.Listen) ([]grpc.ServerOption, error) {
	secure, err := serverTLS(l)
	if secure == nil || err != nil {
		return nil, err
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(secure))}, nil
}
