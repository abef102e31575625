package grpcapi

import "github.com/kvpilot/kvpilot/server/edge/callers"

// Config has the settings of an operator. Defaults live in DefaultConfig alone.
type Config struct {
	// Keys lists the API keys of callers. Without keys, keys_file, jwt and certificates, callers need no credentials.
	Keys []Key `yaml:"keys"`
	// KeysFile names a file with one "tenant:key" or "tenant:key:admin" per line, and options after a space:
	// roles=infer,route name=ci expires=2027-01-31. A key may be written as sha256: and its hex SHA-256 (kvpilot key
	// new). Lines that begin with # are comments. The file is read again when it changes; if that fails, the previous
	// keys stay in force.
	KeysFile string `yaml:"keys_file"`
	// JWT says which signed tokens are accepted.
	JWT callers.JWT `yaml:"jwt"`
	// Certificates maps client certificates (listen.client_ca) to tenants by a name in them; the first match counts.
	Certificates []callers.Certificate `yaml:"certificates"`
	// TenantHeader is the header in which callers with the role gateway send the tenant of a request. It is ignored
	// from others.
	TenantHeader string `yaml:"tenant_header"`
	// Overrides lets callers choose policy, parameters and replicas by x-kvpilot-* headers and ChooseReplica's fields.
	Overrides bool `yaml:"overrides"`
	// OpenAdapters lets callers load and unload LoRA adapters while no credentials are configured. Off, these calls need the role admin.
	OpenAdapters bool `yaml:"open_adapters"`
}

// Key is one caller's API key.
type Key = callers.Key

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Overrides: true, JWT: callers.DefaultJWT(), TenantHeader: "X-Kvpilot-Tenant"}
}

// Callers are the settings of the accepted credentials.
func (c Config) Callers() callers.Config {
	return callers.Config{Keys: c.Keys, KeysFile: c.KeysFile, JWT: c.JWT, Certificates: c.Certificates, TenantHeader: c.TenantHeader}
}

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error { return c.Callers().Validate() }
