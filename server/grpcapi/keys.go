package grpcapi

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/kvpilot/kvpilot/server/apierror"
	"github.com/kvpilot/kvpilot/server/secret"
)

// Keys knows who may call. It is immutable; nil lets everybody do everything.
type Keys struct {
	salt    [16]byte
	holders map[[sha256.Size]byte]holder
}

type holder struct {
	tenant string
	admin  bool
}

// NewKeys reads the keys of a configuration. It returns nil when there are none.
func NewKeys(c Config) (*Keys, error) {
	list := c.Keys
	if c.KeysFile != "" {
		more, err := readKeys(c.KeysFile)
		if err != nil {
			return nil, err
		}
		list = append(list[:len(list):len(list)], more...)
		if len(list) == 0 {
			return nil, fmt.Errorf("keys_file %s holds no key: every call would be let in", c.KeysFile)
		}
	}
	if len(list) == 0 {
		return nil, nil
	}
	k := &Keys{holders: make(map[[sha256.Size]byte]holder, len(list))}
	rand.Read(k.salt[:])
	for _, key := range list {
		k.holders[k.digest(key.Key.Reveal())] = holder{tenant: key.Name, admin: key.Admin}
	}
	return k, nil
}

func readKeys(name string) ([]Key, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("keys_file: %w", err)
	}
	defer func() { _ = file.Close() }() // only read
	var list []Key
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		tenant, key, _ := strings.Cut(line, ":")
		key, admin := strings.CutSuffix(key, ":admin")
		k := Key{Name: tenant, Key: secret.New(key), Admin: admin}
		if err := k.check(); err != nil {
			return nil, fmt.Errorf("keys_file %s, line %d: %w", name, n, err)
		}
		list = append(list, k)
	}
	return list, lines.Err()
}

// digest makes the time of a look-up independent of how much of a key was guessed.
func (k *Keys) digest(key string) [sha256.Size]byte {
	buf := make([]byte, 0, 128)
	return sha256.Sum256(append(append(buf, k.salt[:]...), key...))
}

// Authorize names the tenant of a request by its headers: "Authorization: Bearer KEY", or
// "X-Api-Key: KEY" as Anthropic's clients send it.
func (k *Keys) Authorize(h http.Header) (tenant string, err error) {
	who, err := k.find(h)
	return who.tenant, err
}

func (k *Keys) find(h http.Header) (holder, error) {
	return k.holder(h.Get("X-Api-Key"), h.Get("Authorization"))
}

// holder finds the holder of the key in one of the two headers.
func (k *Keys) holder(key, authorization string) (holder, error) {
	if k == nil {
		return holder{admin: true}, nil
	}
	if scheme, token, ok := strings.Cut(authorization, " "); ok && strings.EqualFold(scheme, "Bearer") {
		key = strings.TrimSpace(token)
	}
	if key == "" {
		return holder{}, apierror.New(apierror.Unauthenticated, "an API key is needed: send it as Authorization: Bearer KEY", nil)
	}
	if who, ok := k.holders[k.digest(key)]; ok {
		return who, nil
	}
	return holder{}, apierror.New(apierror.Unauthenticated, "the API key is not known", nil)
}
