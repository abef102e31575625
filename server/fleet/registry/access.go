package registry

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/kit/check"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
)

// Access is the credentials that the router shows to replicas, and the authorities that it trusts.
type Access struct {
	// APIKey is the bearer token for replicas that did not register with a key. At most one of api_key, api_key_file and api_key_env may
	// be set.
	APIKey secret.String `yaml:"api_key"`
	// APIKeyFile names a file that holds the key instead.
	APIKeyFile string `yaml:"api_key_file"`
	// APIKeyEnv names an environment variable that holds the key instead.
	APIKeyEnv string `yaml:"api_key_env"`
	// TLS configures TLS for replicas with https URLs.
	TLS tlspeer.Config `yaml:"tls"`
}

// or takes unset fields from d. A key is taken whole, whichever way it is written.
func (a Access) or(d Access) Access {
	if a.APIKey.IsEmpty() && a.APIKeyFile == "" && a.APIKeyEnv == "" {
		a.APIKey, a.APIKeyFile, a.APIKeyEnv = d.APIKey, d.APIKeyFile, d.APIKeyEnv
	}
	a.TLS = a.TLS.Or(d.TLS)
	return a
}

func (a Access) validate() error {
	ways := 0
	for _, set := range []bool{!a.APIKey.IsEmpty(), a.APIKeyFile != "", a.APIKeyEnv != ""} {
		if set {
			ways++
		}
	}
	return errors.Join(
		check.That(ways <= 1, "api_key", "only one of api_key, api_key_file and api_key_env may be set"),
		check.Within("tls", a.TLS.Validate()),
	)
}

// access is the spec's own part.
func (s Spec) access() Access {
	return Access{APIKey: s.APIKey, APIKeyFile: s.APIKeyFile, APIKeyEnv: s.APIKeyEnv, TLS: s.TLS}
}

// credentials are an Access with everything read. They can be compared.
type credentials struct {
	key  secret.String
	peer *tlspeer.Identity
}

// keyring finds the credentials for replicas.
type keyring struct {
	common Access
	pools  map[string]Access
	env    Environment

	mu    sync.Mutex
	peers map[tlspeer.Config]*tlspeer.Identity // guarded by mu
}

// newKeyring makes a keyring. Identities that former had already stay the same, so that connections are kept.
func newKeyring(c *Config, env Environment, former *keyring) *keyring {
	k := &keyring{common: c.Access, pools: c.Pools, env: env, peers: map[tlspeer.Config]*tlspeer.Identity{}}
	if former == nil {
		return k
	}
	former.mu.Lock()
	defer former.mu.Unlock()
	for config, peer := range former.peers {
		peer.Recheck() // the settings may have been read again because its files changed
		k.peers[config] = peer
	}
	return k
}

// check reads all that the settings name, and returns an error for each part that cannot be read.
func (k *keyring) check(c *Config) error {
	var errs []error
	try := func(name string, a Access) {
		_, err := k.key(a)
		errs = append(errs, check.Within(name, err))
		if a.TLS != (tlspeer.Config{}) {
			_, err := tlspeer.New(a.TLS)
			errs = append(errs, check.Within(name+".tls", err))
		}
	}
	try("access", c.Access)
	for name, pool := range c.Pools {
		try("pools."+name, pool.or(c.Access))
	}
	for i, d := range c.DNS {
		try(fmt.Sprintf("dns[%d].template", i), d.Template.access())
	}
	for i, kube := range c.Kubernetes {
		try(fmt.Sprintf("kubernetes[%d].template", i), kube.Template.access())
	}
	for i, pool := range c.InferencePools {
		try(fmt.Sprintf("inference_pools[%d].template", i), pool.Template.access())
	}
	return errors.Join(errs...)
}

// of finds a replica's credentials: its own, else its pool's, else the default ones. A replica that registered itself gets
// only its own key: otherwise a caller that may register could have other keys sent to an address of its choice.
func (k *keyring) of(s Spec, registered bool) (credentials, error) {
	a := s.access()
	switch pool, err := k.pool(s); {
	case err != nil:
		return credentials{}, fmt.Errorf("replica %q: %w", s.ID, err)
	case registered:
		a.TLS = a.TLS.Or(k.common.TLS)
	default:
		a = a.or(pool).or(k.common)
	}
	key, err := k.key(a)
	if err != nil {
		return credentials{}, fmt.Errorf("replica %q: %w", s.ID, err)
	}
	peer, err := k.peer(a.TLS)
	if err != nil {
		return credentials{}, fmt.Errorf("replica %q: tls: %w", s.ID, err)
	}
	return credentials{key, peer}, nil
}

// complete fills in a spec that a source lists, and checks that its credentials can be read.
func (k *keyring) complete(s Spec, defaults EventsSpec) (Spec, error) {
	s, err := s.complete(defaults)
	if err == nil {
		_, err = k.of(s, false)
	}
	return s, err
}

// completeAll is complete for a list, up to the first error.
func (k *keyring) completeAll(list []Spec, defaults EventsSpec) ([]Spec, error) {
	specs := make([]Spec, 0, len(list))
	for _, s := range list {
		s, err := k.complete(s, defaults)
		if err != nil {
			return nil, err
		}
		specs = append(specs, s)
	}
	return specs, nil
}

// pool is the settings of the replica's pool: the pool that it names, else the pool of the first of its models that is a pool's name.
func (k *keyring) pool(s Spec) (Access, error) {
	if s.Pool != "" {
		a, ok := k.pools[s.Pool]
		if !ok {
			return a, fmt.Errorf("pool: there is no registry.pools.%s", s.Pool)
		}
		return a, nil
	}
	for _, model := range s.Models {
		if a, ok := k.pools[model]; ok {
			return a, nil
		}
	}
	return Access{}, nil
}

func (k *keyring) key(a Access) (secret.String, error) {
	switch {
	case a.APIKeyFile != "":
		text, err := os.ReadFile(a.APIKeyFile)
		if err != nil {
			return secret.String{}, fmt.Errorf("api_key_file: %w", err)
		}
		key := strings.TrimSpace(string(text))
		if key == "" {
			return secret.String{}, fmt.Errorf("api_key_file: %s is empty", a.APIKeyFile)
		}
		return secret.New(key), nil
	case a.APIKeyEnv != "":
		if k.env != nil {
			if key, ok := k.env.Lookup(a.APIKeyEnv); ok && key != "" {
				return secret.New(key), nil
			}
		}
		return secret.String{}, fmt.Errorf("api_key_env: the variable %s is not set", a.APIKeyEnv)
	}
	return a.APIKey, nil
}

// peer is the one Identity of these settings; nil for none.
func (k *keyring) peer(c tlspeer.Config) (*tlspeer.Identity, error) {
	if c == (tlspeer.Config{}) {
		return nil, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if peer := k.peers[c]; peer != nil {
		return peer, nil
	}
	peer, err := tlspeer.New(c)
	if err != nil {
		return nil, err
	}
	k.peers[c] = peer
	return peer, nil
}
