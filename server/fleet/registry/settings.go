package registry

import (
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
)

// settings are the configuration in force, with the credentials that it names.
type settings struct {
	env    Environment
	config atomic.Pointer[Config]
	keys   atomic.Pointer[keyring]
}

func newSettings(c Config, env Environment) *settings {
	s := &settings{env: env}
	s.replace(c, newKeyring(&c, env, nil))
	return s
}

// now is the configuration in force. It is read-only.
func (s *settings) now() *Config { return s.config.Load() }

func (s *settings) replace(c Config, keys *keyring) {
	s.config.Store(&c)
	s.keys.Store(keys)
}

// complete fills in a spec that a source lists, and checks that its credentials can be read.
func (s *settings) complete(spec Spec) (Spec, error) {
	return s.keys.Load().complete(spec, s.now().Events)
}

// admit completes a caller's spec and checks that such a replica may be registered.
func (s *settings) admit(spec Spec) (Spec, error) {
	spec.APIKeyFile, spec.APIKeyEnv, spec.TLS, spec.Pool = "", "", tlspeer.Config{}, "" // a caller may not read this machine's files
	spec, err := spec.complete(s.now().Events)
	if err != nil {
		return spec, err
	}
	return spec, s.now().Registration.permit(spec)
}

// begin returns the specs of the fixed list.
func (s *settings) begin() ([]Spec, error) {
	keys, c := s.keys.Load(), s.now()
	if err := keys.check(c); err != nil {
		return nil, err
	}
	return keys.completeAll(c.Replicas, c.Events)
}

// prepare returns the settings after an update to next, with the specs of its fixed list. It changes nothing.
func (s *settings) prepare(next Config) (Config, *keyring, []Spec, error) {
	now := *s.now()
	if err := next.Validate(); err != nil {
		return now, nil, nil, err
	}
	keys := newKeyring(&next, s.env, s.keys.Load())
	if err := keys.check(&next); err != nil {
		return now, nil, nil, err
	}
	static, err := keys.completeAll(next.Replicas, now.Events)
	next.Probe.Concurrency, next.Registration.Enabled = now.Probe.Concurrency, now.Registration.Enabled
	now.Replicas, now.Aliases, now.Access, now.Pools = next.Replicas, next.Aliases, next.Access, next.Pools
	now.Probe, now.Registration, now.Drain = next.Probe, next.Registration, next.Drain
	return now, keys, static, err
}
