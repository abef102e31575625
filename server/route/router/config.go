package router

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/secret"
)

// Config is what an operator may set. Defaults live in DefaultConfig alone.
type Config struct {
	// SessionHeader names the header that carries a session; case and the difference between - and
	// _ do not matter. Empty turns it off.
	SessionHeader string `yaml:"session_header"`
	// TokenizeTimeout bounds the wait for token ids; a request without them is routed by what is known.
	TokenizeTimeout time.Duration `yaml:"tokenize_timeout"`
	// MaxMessages bounds the messages of a chat, and the prompts of a batch; requests with more are refused
	// with 400.
	MaxMessages int `yaml:"max_messages"`
	// MaxMembers bounds the members of a request body's object in the same way.
	MaxMembers int `yaml:"max_members"`
	// UnknownRoutes proxies paths that kvpilot does not know to the pool that the body's model names.
	UnknownRoutes bool `yaml:"unknown_routes"`
	// UnownedResponses lets callers with keys read, continue and cancel stored responses that this router did not see made
	// (it was restarted, or another router made them). Off, they are unknown: nothing tells whose they are.
	UnownedResponses bool `yaml:"unowned_responses"`
	// ResumeStreams is how often one stream may go on on another replica after its own has died; 0 turns
	// it off. It is for streams of chat and completions without tools, penalties, seeds, stop strings and the
	// like (see adr/014), and asks engines for the token ids of prompt and answer.
	ResumeStreams int `yaml:"resume_streams"`
	// TenantSalt (on or off) keeps tenants apart in the engines' prefix caches: each request gets a cache_salt that
	// is derived from its tenant and, when it has one, from its own. What replicas hold of a tenant's prompts then
	// comes from that tenant alone, and so do kvpilot's predictions. Callers without a key are one tenant.
	TenantSalt string `yaml:"tenant_salt"`
	// TenantSaltSecret makes the salts unguessable. All routers of a fleet need the same one, of at least 16
	// characters; with another one, what is cached is not found any more.
	TenantSaltSecret secret.String `yaml:"tenant_salt_secret"`
	// UnsaltedRoutes says what becomes of requests on routes that have no cache_salt while tenant_salt is on: refuse
	// answers 501, pass sends them, and their blocks are shared among tenants.
	UnsaltedRoutes string `yaml:"unsalted_routes"`
	// ShowOverlap says to whom answers tell what replicas held of a prompt: auto withholds it from callers with a
	// tenant, whom it would tell what others have sent, unless tenant_salt is on; always shows it.
	ShowOverlap string `yaml:"show_overlap"`
	// RealtimeIdle ends a WebSocket (/v1/realtime) of which nothing passed in either direction for this long. vLLM sends a ping
	// every 20 s. Zero: never.
	RealtimeIdle time.Duration `yaml:"realtime_idle"`
	// Headers says what answers tell about the choice.
	Headers Headers `yaml:"headers"`
}

// The words of the settings.
const (
	SwitchOn       = "on"
	SwitchOff      = "off"
	UnsaltedRefuse = "refuse"
	UnsaltedPass   = "pass"
	ShowAuto       = "auto"
	ShowAlways     = "always"
)

// minSecret bounds the salts' secret from below.
const minSecret = 16

// Headers switches the response headers that explain a choice.
type Headers struct {
	// Replica tells the replica's name.
	Replica bool `yaml:"replica"`
	// Address tells the replica's address also.
	Address bool `yaml:"address"`
	// Overlap tells how many prompt tokens were expected in the replica's cache.
	Overlap bool `yaml:"overlap"`
	// Policy tells the policy that chose, and why it chose as it did.
	Policy bool `yaml:"policy"`
	// Decision tells the decision's id, for ExplainDecision.
	Decision bool `yaml:"decision"`
	// Overhead tells kvpilot's own time before the request left for the replica, in microseconds.
	Overhead bool `yaml:"overhead"`
}

// maxResumes bounds ResumeStreams: a request may be what its replicas die of.
const maxResumes = 8

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		SessionHeader:   "x-session-id",
		TokenizeTimeout: 5 * time.Second,
		MaxMessages:     16384,
		MaxMembers:      4096,
		TenantSalt:      SwitchOff,
		UnsaltedRoutes:  UnsaltedRefuse,
		ShowOverlap:     ShowAuto,
		RealtimeIdle:    5 * time.Minute,
		Headers:         Headers{Replica: true, Overlap: true, Policy: true, Decision: true, Overhead: true},
	}
}

// Validate reports every bad field at once.
func (c Config) Validate() error {
	var errs []error
	if strings.ContainsAny(c.SessionHeader, " :\t\r\n") {
		errs = append(errs, fmt.Errorf("session_header: %q is not a valid header name", c.SessionHeader))
	}
	if c.TokenizeTimeout <= 0 {
		errs = append(errs, errors.New("tokenize_timeout: must be positive"))
	}
	if c.MaxMessages < 1 || c.MaxMembers < 16 {
		errs = append(errs, fmt.Errorf("max_messages: %d must be at least 1, max_members %d at least 16", c.MaxMessages, c.MaxMembers))
	}
	if c.ResumeStreams < 0 || c.ResumeStreams > maxResumes {
		errs = append(errs, fmt.Errorf("resume_streams: must be from 0 to %[2]d, not %[1]d", c.ResumeStreams, maxResumes))
	}
	if c.TenantSalt != SwitchOn && c.TenantSalt != SwitchOff {
		errs = append(errs, fmt.Errorf("tenant_salt: must be on or off, not %q", c.TenantSalt))
	}
	if n := len(c.TenantSaltSecret.Reveal()); c.TenantSalt == SwitchOn && n < minSecret {
		errs = append(errs, fmt.Errorf("tenant_salt_secret: must have at least %[2]d characters, not %[1]d", n, minSecret))
	}
	if c.UnsaltedRoutes != UnsaltedRefuse && c.UnsaltedRoutes != UnsaltedPass {
		errs = append(errs, fmt.Errorf("unsalted_routes: must be refuse or pass, not %q", c.UnsaltedRoutes))
	}
	if c.ShowOverlap != ShowAuto && c.ShowOverlap != ShowAlways {
		errs = append(errs, fmt.Errorf("show_overlap: must be auto or always, not %q", c.ShowOverlap))
	}
	if c.RealtimeIdle < 0 {
		errs = append(errs, fmt.Errorf("realtime_idle: must not be negative: %v", c.RealtimeIdle))
	}
	return errors.Join(errs...)
}
