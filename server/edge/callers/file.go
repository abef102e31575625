package callers

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/secret"
)

// maxKeysFile bounds the file of keys in bytes.
const maxKeysFile = 16 << 20

// readKeys reads a file of keys.
func readKeys(name string) ([]Key, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("keys_file: %w", err)
	}
	if info.Size() > maxKeysFile {
		return nil, fmt.Errorf("keys_file %s has %d bytes, at most %d are read", name, info.Size(), maxKeysFile)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("keys_file: %w", err)
	}
	list, err := parseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("keys_file %s, %w", name, err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("keys_file %s holds no key", name)
	}
	return list, nil
}

// parseKeys reads lines of the form
//
//	tenant:key[:admin] [roles=infer,route] [name=ci] [expires=2027-01-31]
//
// Empty lines and lines that begin with # are skipped. Errors never quote a key.
func parseKeys(text []byte) ([]Key, error) {
	var list []Key
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		k, err := parseLine(line)
		if err == nil {
			_, err = k.parse()
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		list = append(list, k)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("a line is too long: %w", err)
	}
	return list, nil
}

func parseLine(line string) (Key, error) {
	words := strings.Fields(line)
	tenant, key, found := strings.Cut(words[0], ":")
	if !found {
		return Key{}, fmt.Errorf("must be tenant:key, with the options roles=, name= and expires= after a space")
	}
	key, admin := strings.CutSuffix(key, ":admin")
	k := Key{Name: tenant, Key: secret.New(key), Admin: admin}
	for _, word := range words[1:] {
		option, value, _ := strings.Cut(word, "=")
		switch option {
		case "roles":
			k.Roles = splitNames(value)
		case "name":
			k.Caller = value
		case "expires":
			k.Expires = value
		default:
			return Key{}, fmt.Errorf("the key of %q may be followed only by roles=, name= and expires=", tenant)
		}
		if value == "" {
			return Key{}, fmt.Errorf("%s= of %q is empty", option, tenant)
		}
	}
	return k, nil
}

// NewKey makes a key of 256 random bits, and the form of it that a file may hold in its place.
func NewKey() (key, hashed string) {
	var b [32]byte
	rand.Read(b[:])
	key = "kvp_" + base64.RawURLEncoding.EncodeToString(b[:])
	return key, hash(key)
}

// hash is the form of a key that a file may hold in its place. A fast hash is enough for a key of NewKey: 2^256
// of them cannot be tried. It does not protect a key that a person invented.
func hash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hashPrefix + hex.EncodeToString(sum[:])
}

// FormatLine is a line of a keys file.
func FormatLine(tenant, key, roles, name, expires string) (string, error) {
	line := tenant + ":" + key
	for _, option := range [][2]string{{"roles", roles}, {"name", name}, {"expires", expires}} {
		if option[1] != "" {
			line += " " + option[0] + "=" + option[1]
		}
	}
	list, err := parseKeys([]byte(line))
	if err != nil {
		return "", fmt.Errorf("these values cannot be written to a keys file: %w", err)
	}
	if len(list) != 1 || list[0].Name != tenant || list[0].Key.Reveal() != key || list[0].Caller != name {
		return "", fmt.Errorf("the tenant and the name must not contain spaces or colons")
	}
	return line, nil
}
