package salts

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"sync"
	"sync/atomic"
)

// Salts derives salts from a secret. It is safe for concurrent use.
type Salts struct {
	secret []byte
	known  sync.Map // tenant to its salt
	count  atomic.Int64
}

// maxSalts bounds the salts that are remembered; others are derived each time.
const maxSalts = 4096

// New returns the salts of a secret.
func New(secret string) *Salts { return &Salts{secret: []byte(secret)} }

// Of is the tenant's salt, and the caller's own within the tenant when it has one. It is the same in every router of
// the secret.
func (s *Salts) Of(tenant, own string) string {
	if own != "" {
		return s.derive(tenant, own)
	}
	if known, ok := s.known.Load(tenant); ok {
		return known.(string)
	}
	made := s.derive(tenant, "")
	if s.count.Load() < maxSalts {
		if _, had := s.known.LoadOrStore(strings.Clone(tenant), made); !had {
			s.count.Add(1)
		}
	}
	return made
}

// derive makes 43 characters that engines of every version take: letters, digits, - and _.
func (s *Salts) derive(tenant, own string) string {
	mac := hmac.New(sha256.New, s.secret)
	text := append([]byte("kvpilot cache_salt 1\n"), binary.BigEndian.AppendUint64(nil, uint64(len(tenant)))...)
	mac.Write(append(append(text, tenant...), own...))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
