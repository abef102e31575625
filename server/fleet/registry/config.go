package registry

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/check"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
)

// Config has the settings of an operator. Defaults live in DefaultConfig alone.
type Config struct {
	// Replicas lists replicas.
	Replicas []Spec `yaml:"replicas"`
	// File names a YAML file with a list "replicas" of the same form. It is watched for changes.
	File string `yaml:"file"`
	// DNS lists names whose addresses are replicas.
	DNS []DNSConfig `yaml:"dns"`
	// Kubernetes lists Services whose pods are replicas.
	Kubernetes []KubernetesConfig `yaml:"kubernetes"`
	// InferencePools lists InferencePools of the Gateway API Inference Extension whose pods are replicas.
	InferencePools []InferencePoolConfig `yaml:"inference_pools"`
	// Aliases maps names that clients may use to names that replicas serve.
	Aliases map[string]string `yaml:"aliases"`
	// Access sets the credentials that the router shows to replicas and the authorities that it trusts, unless a replica or its pool has its own.
	Access Access `yaml:"access"`
	// Pools has the settings of access for groups of replicas, by the name in their field pool, or by the model that they serve.
	Pools map[string]Access `yaml:"pools"`
	// Events is the default for replicas without events settings.
	Events EventsSpec `yaml:"events"`
	// Probe configures health checks.
	Probe ProbeConfig `yaml:"probe"`
	// Drain configures when requests move from replicas that drain.
	Drain DrainConfig `yaml:"drain"`
	// Registration limits registration by RPC.
	Registration RegistrationConfig `yaml:"registration"`
}

// ProbeConfig configures how each replica's health is probed.
type ProbeConfig struct {
	// Path is the path of the health check; status 200 is healthy.
	Path string `yaml:"path"`
	// Interval is the time between probes of a replica, varied by up to a tenth.
	Interval time.Duration `yaml:"interval"`
	// MaxInterval is the longest time between probes of a replica that stays down. While its machine responds, it is probed every half
	// second for the first minutes.
	MaxInterval time.Duration `yaml:"max_interval"`
	// Timeout limits each request of a probe.
	Timeout time.Duration `yaml:"timeout"`
	// Up is the number of consecutive good probes after which a replica takes requests again.
	Up int `yaml:"up"`
	// Down is the number of consecutive failed probes after which a replica takes no requests. A refused connection counts as that many.
	Down int `yaml:"down"`
	// ModelsInterval is the time between reads of /v1/models, whose list of adapters may change.
	ModelsInterval time.Duration `yaml:"models_interval"`
	// Concurrency limits the concurrent probes; as many more may run for replicas that fail them.
	Concurrency int `yaml:"concurrency"`
}

// RegistrationConfig bounds registration by RPC.
type RegistrationConfig struct {
	// Enabled allows registration where no API keys are in use; with keys, the role admin always can.
	Enabled bool `yaml:"enabled"`
	// Lease is the lifetime of a registration by default.
	Lease time.Duration `yaml:"lease"`
	// MaxLease is the longest lease that a caller may ask for.
	MaxLease time.Duration `yaml:"max_lease"`
	// Max limits the registered replicas.
	Max int `yaml:"max"`
	// MaxRanks limits the ranks of all registered replicas together.
	MaxRanks int `yaml:"max_ranks"`
	// Networks lists the networks of registered replicas, for example "10.0.0.0/8". Empty: any but link-local ones.
	Networks []string `yaml:"networks"`
}

// DNSConfig makes replicas of a name's addresses.
type DNSConfig struct {
	// Name is the name to look up. Host records (A and AAAA) need a port; of SRV records the full name, for example
	// "_http._tcp.vllm.default.svc.cluster.local".
	Name string `yaml:"name"`
	// SRV looks up SRV records, which bring their own ports.
	SRV bool `yaml:"srv"`
	// Port is the port of every address; unused with SRV.
	Port int `yaml:"port"`
	// Interval is the time between look-ups, at least a second. Zero: 15 s.
	Interval time.Duration `yaml:"interval"`
	// Template sets the other fields of each replica; its id and url must be empty.
	Template Spec `yaml:"template"`
	// TLS makes the URLs https.
	TLS bool `yaml:"tls"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Probe: ProbeConfig{
			Path: "/health", Interval: time.Second, MaxInterval: 30 * time.Second, Timeout: 2 * time.Second,
			Up: 2, Down: 2, ModelsInterval: 10 * time.Second, Concurrency: 64,
		},
		Registration: RegistrationConfig{Lease: 30 * time.Second, MaxLease: time.Hour, Max: 10_000, MaxRanks: 4096},
	}
}

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	var errs []error
	seen := map[replica.ID]bool{}
	for i, s := range c.Replicas {
		done, err := s.complete(c.Events)
		name := fmt.Sprintf("replicas[%d]", i)
		errs = append(errs, check.Within(name, err), check.That(err != nil || !seen[done.ID], name, "duplicate id %q", done.ID), c.knownPool(name, s))
		seen[done.ID] = true
	}
	for i, d := range c.DNS {
		name := fmt.Sprintf("dns[%d]", i)
		errs = append(errs, check.Within(name, d.validate()), c.knownPool(name+".template", d.Template))
	}
	for i, k := range c.Kubernetes {
		name := fmt.Sprintf("kubernetes[%d]", i)
		errs = append(errs, check.Within(name, k.validate()), c.knownPool(name+".template", k.Template))
	}
	for i, p := range c.InferencePools {
		name := fmt.Sprintf("inference_pools[%d]", i)
		errs = append(errs, check.Within(name, p.validate()), c.knownPool(name+".template", p.Template))
	}
	for alias, served := range c.Aliases {
		errs = append(errs, check.That(alias != "" && served != "", "aliases", "%q: %q: neither may be empty", alias, served))
	}
	for name, pool := range c.Pools {
		errs = append(errs, check.Within("pools."+name, pool.or(c.Access).validate()))
	}
	errs = append(errs, check.Within("access", c.Access.validate()), check.Within("probe", c.Probe.validate()), check.Within("drain", c.Drain.validate()), check.Within("registration", c.Registration.validate()))
	return errors.Join(errs...)
}

// Doubts lists settings that are valid and probably wrong.
func (c Config) Doubts() []string {
	var list []string
	for i, s := range c.Replicas {
		if endsInV1(s.URL) {
			list = append(list, fmt.Sprintf("replicas[%d].url: %q ends in /v1: %s", i, s.URL, removeV1))
		}
	}
	return list
}

// knownPool checks that the pool of an entry exists.
func (c Config) knownPool(setting string, s Spec) error {
	_, ok := c.Pools[s.Pool]
	return check.That(ok || s.Pool == "", setting+".pool", "there is no registry.pools.%s", s.Pool)
}

func (p ProbeConfig) validate() error {
	return errors.Join(
		check.That(strings.HasPrefix(p.Path, "/"), "path", "must start with a slash, is %q", p.Path),
		check.AtLeast("interval", p.Interval, time.Millisecond),
		check.AtLeast("timeout", p.Timeout, time.Millisecond),
		check.AtLeast("models_interval", p.ModelsInterval, time.Millisecond),
		check.That(p.MaxInterval >= p.Interval, "max_interval", "must be at least interval (%s), is %s", p.Interval, p.MaxInterval),
		check.AtLeast("up", p.Up, 1),
		check.AtLeast("down", p.Down, 1),
		check.AtLeast("concurrency", p.Concurrency, 1),
	)
}

func (c RegistrationConfig) validate() error {
	_, err := c.networks()
	return errors.Join(
		check.AtLeast("lease", c.Lease, time.Second),
		check.That(c.MaxLease >= c.Lease, "max_lease", "must be at least lease (%s), is %s", c.Lease, c.MaxLease),
		check.AtLeast("max", c.Max, 0),
		check.AtLeast("max_ranks", c.MaxRanks, 0),
		err,
	)
}

func (d DNSConfig) validate() error {
	errs := []error{
		check.NotEmpty("name", d.Name),
		check.That(d.Template.ID == "" && d.Template.URL == "", "template", "id and url must be empty: they come from the look-up"),
	}
	if !d.SRV {
		errs = append(errs, check.Between("port", d.Port, 1, 65535))
	}
	if d.Interval != 0 {
		errs = append(errs, check.AtLeast("interval", d.Interval, time.Second))
	}
	return errors.Join(errs...)
}

// Params has the arguments of the code. Its zero value is valid.
type Params struct {
	Log   *slog.Logger
	Meter metric.MeterProvider
	// Client makes the probes' requests; nil makes one that suits vLLM.
	Client *http.Client
	// Resolver looks up DNS names; nil takes the system's.
	Resolver Resolver
	// Env has the variables of the environment that settings may name; nil has none.
	Env Environment

	// Observer follows the fleet, Reporter the changes by callers; nil: there is none.
	Observer Observer
	Reporter Reporter
}

// Environment has the variables of the process's environment.
type Environment interface {
	Lookup(name string) (value string, ok bool)
}

// or fills in the unset fields.
func (p Params) or() Params {
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	if p.Client == nil {
		p.Client = newClient()
	}
	if p.Resolver == nil {
		p.Resolver = net.DefaultResolver
	}
	if p.Observer == nil {
		p.Observer = unobserved{}
	}
	if p.Reporter == nil {
		p.Reporter = unobserved{}
	}
	return p
}

// newClient suits vLLM: its keep-alive is 5 s, and a probe must not wait for a dead peer.
func newClient() *http.Client {
	return &http.Client{
		Transport: tlspeer.NewTransports(&http.Transport{
			DialContext:         (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 1, IdleConnTimeout: 4 * time.Second, DisableCompression: true,
			TLSHandshakeTimeout: 2 * time.Second,
		}),
		CheckRedirect: noRedirect,
	}
}
