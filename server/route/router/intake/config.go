package intake

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/secret"
)

// Config is what an operator may set. Defaults live in DefaultConfig alone.
type Config struct {
	// SessionHeader names the header that carries a session; case and the difference between - and _ do not matter.
	// Empty: no header does.
	SessionHeader string `yaml:"session_header"`
	// SessionHeaders lists further headers that carry a session, in this order after session_header (docs/agents.md). Empty: none.
	SessionHeaders []string `yaml:"session_headers"`
	// TokenizeTimeout limits the wait for token ids; after it, a request is routed without them.
	TokenizeTimeout time.Duration `yaml:"tokenize_timeout"`
	// MaxMessages limits the messages of a chat, and the prompts of a batch; requests with more are rejected with 400.
	MaxMessages int `yaml:"max_messages"`
	// MaxMembers limits the members of a request body's object in the same way.
	MaxMembers int `yaml:"max_members"`
	// UnknownRoutes forwards paths that kvpilot does not know to the pool of the body's model.
	UnknownRoutes bool `yaml:"unknown_routes"`
	// UnownedResponses lets callers with keys read, continue and cancel stored responses whose owner this router does not know (it was
	// restarted, or another router made them). Off, such responses are unknown.
	UnownedResponses bool `yaml:"unowned_responses"`
	// ResumeStreams is the number of times that one stream may be resumed on another replica (docs/streams.md); 0 turns it off. It
	// requests the token ids of prompt and answer from engines.
	ResumeStreams int `yaml:"resume_streams"`
	// ResumeMessages makes sampled streams of /v1/messages resumable on vLLM 0.33: the router requests them as chats and writes their
	// events. Off, only streams at temperature 0 can be resumed.
	ResumeMessages bool `yaml:"resume_messages"`
	// ResumeUnstreamed makes answers in one piece resumable: where it can, the router requests them as streams and makes one piece of
	// each, byte for byte as the engine would (docs/streams.md). Each token then costs engine and router an event. Off, such a request is
	// sent again from the start.
	ResumeUnstreamed bool `yaml:"resume_unstreamed"`
	// TenantSalt separates tenants in the engines' prefix caches, on or off: each request gets a cache_salt that is derived from its
	// tenant and, if it has one, from its own. Callers without a key are one tenant.
	TenantSalt string `yaml:"tenant_salt"`
	// TenantSaltSecret makes the salts unguessable: at least 16 characters, the same at all routers of a fleet. A change makes all cached
	// blocks unreachable.
	TenantSaltSecret secret.String `yaml:"tenant_salt_secret"`
	// UnsaltedRoutes decides about requests on routes without cache_salt while tenant_salt is on: refuse answers 501, pass forwards them, and
	// tenants share their blocks.
	UnsaltedRoutes string `yaml:"unsalted_routes"`
	// ShowOverlap says whether answers contain the prompt's overlap: auto or always. With auto, callers with a tenant do not get it
	// unless tenant_salt is on, because it reveals other tenants' prompts.
	ShowOverlap string `yaml:"show_overlap"`
	// RealtimeIdle ends a WebSocket (/v1/realtime) without traffic in either direction for this long. vLLM sends a
	// ping every 20 s. Zero: never.
	RealtimeIdle time.Duration `yaml:"realtime_idle"`
	// Headers selects the response headers that describe the choice.
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
	// Replica adds the replica's name.
	Replica bool `yaml:"replica"`
	// Address adds the replica's address.
	Address bool `yaml:"address"`
	// Overlap adds the number of prompt tokens that were expected in the replica's cache.
	Overlap bool `yaml:"overlap"`
	// Policy adds the policy that chose, and the reason of the choice.
	Policy bool `yaml:"policy"`
	// Decision adds the decision's id, for ExplainDecision.
	Decision bool `yaml:"decision"`
	// Overhead adds kvpilot's own time before the request left for the replica, in microseconds.
	Overhead bool `yaml:"overhead"`
}

// maxResumes bounds ResumeStreams: a request may be the reason why its replicas die.
const maxResumes = 8

const (
	// maxSessionHeaders bounds the headers that each request is searched for.
	maxSessionHeaders = 32
	// notInHeaders are characters that no header's name has.
	notInHeaders = " :\t\r\n"
)

// agentHeaders are the headers by which coding agents and gateways name a session; docs/agents.md says where each is
// documented.
func agentHeaders() []string {
	return []string{
		"x-claude-code-session-id",                   // Claude Code
		"thread-id", "session-id", "conversation-id", // Codex, which wrote the last two with an underscore
		"x-session-affinity", "x-opencode-session", // OpenCode, which sends x-session-id too
		"x-dynamo-session-id", "x-litellm-session-id", "x-aibrix-session-key", // gateways
		"x-amp-thread-id", "helicone-session-id",
	}
}

// sessionHeaders are all headers that may carry a session.
func (c Config) sessionHeaders() []string {
	if c.SessionHeader == "" {
		return c.SessionHeaders
	}
	return append([]string{c.SessionHeader}, c.SessionHeaders...)
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		SessionHeader:   "x-session-id",
		SessionHeaders:  agentHeaders(),
		TokenizeTimeout: 5 * time.Second,
		ResumeStreams:   2,
		ResumeMessages:  true,
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
	if strings.ContainsAny(c.SessionHeader, notInHeaders) {
		errs = append(errs, fmt.Errorf("session_header: %q is not a valid header name", c.SessionHeader))
	}
	for _, name := range c.SessionHeaders {
		if name == "" || strings.ContainsAny(name, notInHeaders) {
			errs = append(errs, fmt.Errorf("session_headers: %q is not a valid header name", name))
		}
	}
	if len(c.SessionHeaders) > maxSessionHeaders {
		errs = append(errs, fmt.Errorf("session_headers: at most %d are allowed, not %d", maxSessionHeaders, len(c.SessionHeaders)))
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
