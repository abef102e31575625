package intake

import "github.com/kvpilot/kvpilot/server/route/router/salts"

// settings are what a request keeps from its beginning to its end, also when a reload changes them.
type settings struct {
	Config
	Attempts int
	// salts is nil unless tenants have salts.
	salts *salts.Salts
	// sessions are the headers that may carry a session.
	sessions []string
}

func newSettings(c Config, attempts int) *settings {
	s := &settings{Config: c, Attempts: attempts, sessions: c.sessionHeaders()}
	if c.TenantSalt == SwitchOn {
		s.salts = salts.New(c.TenantSaltSecret.Reveal())
	}
	return s
}

// ShowsOverlap reports whether the caller may see what replicas hold of its prompt: it reveals what others have sent,
// unless their blocks are kept apart.
func (s *settings) ShowsOverlap(c Caller) bool {
	return c.Tenant == "" || c.ShowOverlap || s.salts != nil || s.ShowOverlap == ShowAlways
}

// MostAsked is how many replicas are asked for the rest of a stream before one gives something of it.
func (s *settings) MostAsked() int { return max(s.Attempts, s.ResumeStreams+1) }
