package identity

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"math/big"
	"sync"
	"time"
)

const (
	// MinKey is the shortest key that is accepted, in bytes.
	MinKey = 16

	// skew is how far a peer's clock may differ, and valid how long a certificate lasts, without the skew at both ends.
	skew  = time.Hour
	valid = 24 * time.Hour
	// renewAfter is the age at which a certificate is replaced.
	renewAfter = valid / 2

	idBytes = 4
)

// NewID makes a router's id: 8 hexadecimal digits.
func NewID() string {
	var id [idBytes]byte
	_, _ = rand.Read(id[:]) // it never fails
	return hex.EncodeToString(id[:])
}

// IsID reports whether id has the form of a router's id.
func IsID(id string) bool {
	if len(id) != 2*idBytes {
		return false
	}
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Identity is a router's.
type Identity struct {
	id        string
	gossip    []byte
	authority *x509.Certificate
	signer    ed25519.PrivateKey
	pool      *x509.CertPool

	mu   sync.Mutex
	leaf *tls.Certificate // guarded by mu
	made time.Time        // guarded by mu
}

// New derives the identity of the router with this id from the fleet's key, which has at least MinKey bytes.
func New(key []byte, id string) (*Identity, error) {
	if len(key) < MinKey {
		return nil, fmt.Errorf("the fleet's key must have at least %d bytes, not %d", MinKey, len(key))
	}
	if !IsID(id) {
		return nil, fmt.Errorf("a router's id must have %d hexadecimal digits, not %q", 2*idBytes, id)
	}
	gossip, err := derive(key, "gossip")
	if err != nil {
		return nil, err
	}
	seed, err := derive(key, "certificate authority")
	if err != nil {
		return nil, err
	}
	i := &Identity{id: id, gossip: gossip, signer: ed25519.NewKeyFromSeed(seed), pool: x509.NewCertPool()}
	if i.authority, err = newAuthority(i.signer); err != nil {
		return nil, err
	}
	i.pool.AddCert(i.authority)
	return i, nil
}

// GossipKey is the 32-byte key of the members' gossip.
func (i *Identity) GossipKey() []byte { return i.gossip }

// derive makes 32 bytes for one purpose out of the fleet's key.
func derive(key []byte, purpose string) ([]byte, error) {
	out, err := hkdf.Key(sha256.New, key, []byte("kvpilot fleet"), purpose+" v1", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the %s key: %w", purpose, err)
	}
	return out, nil
}

// newAuthority makes the certificate that all members have alike: nothing of it is random, and Ed25519 signs without dice.
func newAuthority(signer ed25519.PrivateKey) (*x509.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kvpilot fleet"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, signer.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("make the fleet's authority: %w", err)
	}
	return x509.ParseCertificate(der)
}

// certificate is the router's own, renewed when it is due.
func (i *Identity) certificate() (*tls.Certificate, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	if i.leaf != nil && now.Sub(i.made) < renewAfter && !now.Before(i.made) {
		return i.leaf, nil
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: i.id}, DNSNames: []string{i.id},
		NotBefore: now.Add(-skew), NotAfter: now.Add(valid + skew),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, i.authority, public, i.signer)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	i.leaf, i.made = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, now
	return i.leaf, nil
}
