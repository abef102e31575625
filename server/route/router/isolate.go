package router

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// isolation gives each tenant a cache_salt of its own, so that engines share no block between tenants; nil gives none.
type isolation struct {
	secret []byte
	// pass accepts requests on routes without a cache_salt.
	pass  bool
	known sync.Map // tenant to its salt
	count atomic.Int64
}

// maxSalts bounds the salts that are remembered; others are derived each time.
const maxSalts = 4096

func newIsolation(c Config) *isolation {
	if c.TenantSalt != SwitchOn {
		return nil
	}
	return &isolation{secret: []byte(c.TenantSaltSecret.Reveal()), pass: c.UnsaltedRoutes == UnsaltedPass}
}

// salt is the tenant's salt, and the caller's own within the tenant when it has one. It is the same in every router of
// the secret.
func (s *isolation) salt(tenant, own string) string {
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
func (s *isolation) derive(tenant, own string) string {
	mac := hmac.New(sha256.New, s.secret)
	text := append([]byte("kvpilot cache_salt 1\n"), binary.BigEndian.AppendUint64(nil, uint64(len(tenant)))...)
	mac.Write(append(append(text, tenant...), own...))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// salting is what a route does with a cache_salt.
type salting uint8

const (
	saltTaken salting = iota
	saltMissing
	saltNeedless // no block is computed
)

// saltingOf returns it for a route. docs/security.md has the versions of vLLM.
func saltingOf(route openai.Route, path string) salting {
	path = strings.TrimSuffix(path, "/")
	switch route {
	case openai.RouteTokenize, openai.RouteDetokenize, openai.RouteCountTokens:
		return saltNeedless
	case openai.RouteTranscriptions, openai.RouteTranslations:
		return saltMissing
	case openai.RouteEmbeddings:
		if path == "/v2/embed" {
			return saltMissing
		}
	case openai.RouteOther:
		switch path {
		case "/v1/chat/completions/batch", "/inference/v1/generate", "/v1/decisions", "/generative_scoring":
			return saltTaken
		}
		if strings.HasSuffix(path, "/render") || strings.HasSuffix(path, "/derender") || path == "/tokenizer_info" {
			return saltNeedless
		}
		return saltMissing
	default:
	}
	return saltTaken
}

// apply gives the request its tenant's salt: in the body that engines get, and in the keys of its blocks here.
func (s *isolation) apply(rq *request) error {
	if s == nil {
		return nil
	}
	switch saltingOf(rq.call.Route, rq.call.path()) {
	case saltNeedless:
		return nil
	case saltMissing:
		if s.pass {
			return nil
		}
		return apierror.New(apierror.NotSupported, "the route has no cache_salt, which this router needs to keep tenants apart (router.unsalted_routes)", nil)
	case saltTaken:
	}
	if raw := string(rq.parsed.Raw("cache_salt")); rq.parsed.Salt == "" && raw != "" && raw != "null" {
		return apierror.New(apierror.InvalidBody, "cache_salt must be a non-empty string", nil, apierror.WithParam("cache_salt"))
	}
	salt := s.salt(rq.call.Tenant, rq.parsed.Salt)
	rq.parsed.Salt, rq.parsed.Prompt.Salt, rq.parsed.Prompt.Apart, rq.isolated = salt, salt, rq.call.Tenant, true
	rq.parsed.Impose(openai.Edit{Name: "cache_salt", Value: append(append([]byte{'"'}, salt...), '"')})
	return nil
}

// saltedSince is the first 0.x version of vLLM that is known to take a cache_salt on the route; 0 is any.
func saltedSince(call *Call) int {
	switch call.Route {
	case openai.RouteAny, openai.RouteChat, openai.RouteCompletions, openai.RouteResponses:
		return 0
	default:
		if strings.HasSuffix(call.path(), "/generate") {
			return 0
		}
		return 32 // 0.12 has none on these, and one between did not have them all
	}
}

// denyOld denies the replicas on which vLLM ignores a cache_salt on the request's route.
func (s *isolation) denyOld(rq *request) error {
	if !rq.isolated || s.pass {
		return nil
	}
	since := saltedSince(rq.call)
	var old []replica.ID
	for _, rep := range rq.pool.Replicas {
		if olderThan(rep.Version, since) {
			old = append(old, rep.ID)
		}
	}
	switch {
	case len(old) == 0:
		return nil
	case len(old) == len(rq.pool.Replicas):
		return apierror.New(apierror.NotSupported, "the replicas' vLLM has no cache_salt on this route, which this router needs to keep tenants apart (router.unsalted_routes)", nil)
	}
	o := &rq.call.Options
	o.Denied = append(slices.Clip(o.Denied), old...)
	return nil
}

// olderThan reports whether a version is 0.x with a smaller x; one that cannot be read is not.
func olderThan(version string, minor int) bool {
	rest, ok := strings.CutPrefix(version, "0.")
	if !ok {
		return false
	}
	text, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(text)
	return err == nil && n < minor && !strings.Contains(version, "dev")
}
