package tlspeer

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// recheck is how often files are looked at, at most.
const recheck = 10 * time.Second

// Identity is a Config at work: how the router shows itself, and which certificates it trusts. It never changes but for the contents of
// its files, so two that are the same pointer are the same peer to a replica. A nil Identity trusts the system's
// certificates and shows none. It is safe for concurrent use.
type Identity struct {
	config Config

	mu     sync.Mutex
	made   *tls.Config // guarded by mu; never changed once made
	files  [3][]byte   // guarded by mu: the contents from which made was made
	looked time.Time   // guarded by mu
}

// New reads the files. c must be valid.
func New(c Config) (*Identity, error) {
	i := &Identity{config: c}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i, i.read(time.Now())
}

// read rebuilds the TLS settings when a file has changed. mu is held.
func (i *Identity) read(now time.Time) error {
	i.looked = now
	var files [3][]byte
	for n, name := range []string{i.config.CAFile, i.config.CertFile, i.config.KeyFile} {
		if name == "" {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("%s: %w", fileSetting(n), err)
		}
		files[n] = text
	}
	if i.made != nil && bytes.Equal(files[0], i.files[0]) && bytes.Equal(files[1], i.files[1]) && bytes.Equal(files[2], i.files[2]) {
		return nil
	}
	version, err := i.config.version()
	if err != nil {
		return err
	}
	made := &tls.Config{MinVersion: version, NextProtos: []string{"http/1.1"}}
	if i.config.CAFile != "" {
		made.RootCAs = x509.NewCertPool()
		if !made.RootCAs.AppendCertsFromPEM(files[0]) {
			return fmt.Errorf("ca_file: %s holds no certificate in PEM", i.config.CAFile)
		}
	}
	if i.config.CertFile != "" {
		pair, err := tls.X509KeyPair(files[1], files[2])
		if err != nil {
			return fmt.Errorf("cert_file %s with key_file %s: %w", i.config.CertFile, i.config.KeyFile, err)
		}
		// Whatever authorities the replica names: its refusal says more than no certificate would.
		made.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	i.made, i.files = made, files
	return nil
}

func fileSetting(n int) string { return [...]string{"ca_file", "cert_file", "key_file"}[n] }

// forHost is the TLS settings of a connection to host. Files that cannot be read leave the contents that were read last.
func (i *Identity) forHost(host string) *tls.Config {
	if i == nil {
		return &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if now := time.Now(); now.Sub(i.looked) >= recheck {
		_ = i.read(now) // a file that is just being replaced; the next look is soon
	}
	c := i.made.Clone()
	if c.ServerName = i.config.ServerName; c.ServerName == "" {
		c.ServerName = host
	}
	return c
}

// Handshake speaks TLS over conn with the replica called host. conn is closed when it fails, and the error says why.
func (i *Identity) Handshake(ctx context.Context, conn net.Conn, host string) (*tls.Conn, error) {
	secured := tls.Client(conn, i.forHost(host))
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // nothing can be done about it
		return nil, Explain(fmt.Errorf("TLS handshake: %w", err))
	}
	return secured, nil
}

// Recheck has the next connection look at the files, however short the last look is ago.
func (i *Identity) Recheck() {
	if i == nil {
		return
	}
	i.mu.Lock()
	i.looked = time.Time{}
	i.mu.Unlock()
}
