package router

// settings are what a request keeps from its beginning to its end, also when a reload changes them.
type settings struct {
	Config
	attempts int
	// isolation is nil unless tenants have salts.
	isolation *isolation
	// sessions are the headers that may carry a session.
	sessions []string
}

func newSettings(c Config, attempts int) *settings {
	return &settings{Config: c, attempts: attempts, isolation: newIsolation(c), sessions: c.sessionHeaders()}
}

// showsOverlap reports whether the caller may see what replicas hold of its prompt: it reveals what others have sent,
// unless their blocks are kept apart.
func (s *settings) showsOverlap(c Caller) bool {
	return c.Tenant == "" || c.ShowOverlap || s.isolation != nil || s.ShowOverlap == ShowAlways
}
