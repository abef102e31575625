package registry

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/kit/check"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
)

// Spec describes one replica, as an operator writes it and as Register receives it.
type Spec struct {
	// ID names the replica to clients and operators. Empty: derived from the URL.
	ID replica.ID `yaml:"id"`
	// URL is the base URL, for example "http://10.0.0.7:8000".
	URL string `yaml:"url"`
	// APIKey is the key that the router sends to the replica as a bearer token.
	APIKey secret.String `yaml:"api_key"`
	// APIKeyFile names a file that holds the key instead.
	APIKeyFile string `yaml:"api_key_file"`
	// APIKeyEnv names an environment variable that holds the key instead.
	APIKeyEnv string `yaml:"api_key_env"`
	// TLS configures TLS for an https URL. Unset fields, and the key, come from the pool, else from registry.access.
	TLS tlspeer.Config `yaml:"tls"`
	// Pool names an entry of registry.pools. Empty: the first entry that has the name of one of the replica's models.
	Pool string `yaml:"pool"`
	// Models lists the models to serve from this replica, instead of all that its /v1/models lists.
	Models []string `yaml:"models"`
	// Ranks is the number of data-parallel ranks behind the URL. Zero: the replica's report (vLLM from 0.32 on, with KV events), else one.
	Ranks int `yaml:"ranks"`
	// Events says where the ranks publish KV cache events. Unset fields come from registry.events.
	Events EventsSpec `yaml:"events"`
	// BlockSize overrides the KV block size in tokens that the replica reports.
	BlockSize int `yaml:"block_size"`
	// Blocks is the number of KV blocks per rank, for replicas that do not report it.
	Blocks int `yaml:"blocks"`
	// MaxBatchedTokens is the engine's token budget per step, when known.
	MaxBatchedTokens int `yaml:"max_batched_tokens"`
	// MetricsPort is the port of the replica's /metrics. Zero: the port of the URL.
	MetricsPort int `yaml:"metrics_port"`
	// Labels is a map of free key-value pairs. Some have a meaning: kv_connector, role, kv_group and kv_domain (docs/disaggregation.md),
	// kv_store (docs/tiers.md).
	Labels map[string]string `yaml:"labels"`
	// Leaving announces that the replica is about to stop: it drains, and its requests move. Kubernetes sources set it for a pod that is
	// being deleted.
	Leaving bool `yaml:"leaving"`

	completed, ranksSet bool // complete has run; Ranks was set and not assumed
	pod                 podSaid
}

// podSaid has the facts about a replica that a Kubernetes source reads from its pod.
type podSaid struct {
	// model, when set, is the one base model to serve, if the replica lists it; it counts more than Models. adapters,
	// when set, limits the adapters that are served.
	model    string
	adapters *adapterRule
	// unready is set while the cluster sends nothing to the pod: it gets no new requests, and keeps its own.
	unready bool
}

func (p podSaid) equal(o podSaid) bool {
	return p.model == o.model && p.unready == o.unready && p.adapters.equal(o.adapters)
}

// EventsSpec says where the ranks of a replica publish KV cache events. In both addresses
// "{host}" and a wildcard ("*", "0.0.0.0") stand for the replica's host and "{rank}" for the
// rank's index; where no "{rank}" is, the port grows by the rank's index, as vLLM does it.
type EventsSpec struct {
	// Endpoint is the engine's PUB address, for example "tcp://{host}:5557"; "none" for no events. Empty: the replica's report (GET
	// /kv_event_sources, vLLM from 0.32 on). "grpc://{host}:port" asks vLLM's Control service there.
	Endpoint string `yaml:"endpoint"`
	// Replay is the engine's ROUTER address for replays; "none" for none.
	Replay string `yaml:"replay"`
	// Topic is the subscription prefix; empty subscribes to everything. It may contain "{host}", "{rank}" and "{id}",
	// the replica's id.
	Topic string `yaml:"topic"`
	// Bind makes the router bind the endpoint and the engine dial it.
	Bind bool `yaml:"bind"`
}

const (
	none      = "none"
	maxRanks  = 1024
	maxIDLen  = 256
	maxLabels = 64
)

// or fills the unset fields of e from the defaults d.
func (e EventsSpec) or(d EventsSpec) EventsSpec {
	if e.Endpoint == "" {
		e.Endpoint, e.Bind = d.Endpoint, e.Bind || d.Bind
	}
	if e.Replay == "" {
		e.Replay = d.Replay
	}
	if e.Topic == "" {
		e.Topic = d.Topic
	}
	return e
}

// complete checks the spec and fills in the fields that follow from the rest.
func (s Spec) complete(defaults EventsSpec) (Spec, error) {
	var errs []error
	base, err := url.Parse(s.URL)
	switch {
	case s.URL == "":
		errs = append(errs, errors.New("url: must be set, for example http://10.0.0.7:8000"))
	case check.IsSocketPath(s.URL):
		errs = append(errs, fmt.Errorf("url: %q is a Unix socket, and replicas are reached over TCP only: start vLLM with --host and --port instead of --uds", s.URL))
	case !strings.Contains(s.URL, "://"): // the most frequent mistake; url.Parse reports others
		errs = append(errs, fmt.Errorf("url: %q has no scheme; did you mean http://%s?", s.URL, s.URL))
	case err != nil:
		errs = append(errs, fmt.Errorf("url: %w", err))
	case base.Scheme != "http" && base.Scheme != "https", base.Host == "", base.RawQuery != "", base.Fragment != "", base.User != nil:
		errs = append(errs, fmt.Errorf("url: %q is not of the form http://host:port", s.URL))
	default:
		s.URL = strings.TrimRight(s.URL, "/")
	}
	if s.ID == "" && len(errs) == 0 {
		s.ID = replica.ID(fmt.Sprintf("replica-%08x", uint32(xxh3.HashString(s.URL))))
	}
	errs = append(errs, check.That(len(s.ID) <= maxIDLen && !strings.ContainsFunc(string(s.ID), func(r rune) bool { return r <= ' ' || r > '~' }),
		"id", "must be 1 to %d printable ASCII characters without spaces, is %q", maxIDLen, s.ID))
	if s.Ranks == 0 {
		s.Ranks = 1
	} else if !s.completed {
		s.ranksSet = true
	}
	s.completed = true
	errs = append(errs,
		check.Between("ranks", s.Ranks, 1, maxRanks),
		check.AtLeast("block_size", s.BlockSize, 0),
		check.AtLeast("blocks", s.Blocks, 0),
		check.AtLeast("max_batched_tokens", s.MaxBatchedTokens, 0),
		check.Between("metrics_port", s.MetricsPort, 0, 65535),
		check.That(len(s.Labels) <= maxLabels, "labels", "at most %d are allowed, not %d", maxLabels, len(s.Labels)),
		check.That(!slices.Contains(s.Models, ""), "models", "a name is empty"),
		s.connector(),
		s.access().validate())
	s.Events = s.Events.or(defaults)
	if errors.Join(errs...) == nil {
		_, err := s.events()
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return s, fmt.Errorf("replica %q: %w", cmp.Or(string(s.ID), s.URL), err)
	}
	return s, nil
}

// connector checks the label that names the KV connector.
func (s Spec) connector() error {
	name := s.Labels[replica.LabelConnector]
	_, known := replica.ReadTransport(name)
	return check.That(known, "labels", "kv_connector must be nixl, nixl-push or absent, not %q", name)
}

// events gives the addresses of each rank; nil when there are none.
func (s Spec) events() ([]replica.Events, error) {
	if s.Events.Endpoint == "" || s.Events.Endpoint == none {
		return nil, nil
	}
	base, err := url.Parse(s.URL)
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	host := base.Hostname()
	list := make([]replica.Events, s.Ranks)
	for rank := range list {
		list[rank] = replica.Events{Bind: s.Events.Bind, Topic: s.topic(host, rank), Rank: rank}
		if list[rank].Endpoint, err = rankAddress(s.Events.Endpoint, host, rank, !s.Events.Bind); err != nil {
			return nil, fmt.Errorf("events.endpoint: %w", err)
		}
		if s.Events.Replay == "" || s.Events.Replay == none {
			continue
		}
		if list[rank].Replay, err = rankAddress(s.Events.Replay, host, rank, true); err != nil {
			return nil, fmt.Errorf("events.replay: %w", err)
		}
	}
	return list, nil
}

// metricsURL is the base URL of the replica's /metrics; empty: the URL.
func (s Spec) metricsURL() string {
	base, err := url.Parse(s.URL)
	if s.MetricsPort == 0 || err != nil {
		return ""
	}
	base.Host = net.JoinHostPort(base.Hostname(), strconv.Itoa(s.MetricsPort))
	return base.String()
}

// topic is the rank's subscription prefix.
func (s Spec) topic(host string, rank int) string {
	if !strings.Contains(s.Events.Topic, "{") {
		return s.Events.Topic
	}
	return strings.NewReplacer("{host}", host, "{rank}", strconv.Itoa(rank), "{id}", string(s.ID)).Replace(s.Events.Topic)
}

// rankAddress makes one rank's address of a template. Wildcards are replaced only in addresses
// that are dialled.
func rankAddress(template, host string, rank int, dialled bool) (string, error) {
	scheme, rest, ok := strings.Cut(template, "://")
	if !ok {
		return "", fmt.Errorf("%q is not of the form tcp://host:port", template)
	}
	numbered := strings.Contains(rest, "{rank}")
	rest = strings.ReplaceAll(rest, "{rank}", strconv.Itoa(rank))
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	rest = strings.ReplaceAll(rest, "{host}", host)
	switch scheme {
	case "tcp":
		return tcpAddress(rest, host, rank, numbered, dialled)
	case "grpc", "grpcs": // vLLM's Control service: one address for all ranks, which it distinguishes
		if !dialled {
			return "", fmt.Errorf("%q is a service to ask and cannot be bound", template)
		}
		address, err := tcpAddress(rest, host, 0, true, dialled)
		return scheme + strings.TrimPrefix(address, "tcp"), err
	case "ipc":
		if rank > 0 && !numbered {
			return "", fmt.Errorf("%q has one socket for several ranks: write {rank} into it", template)
		}
	case "inproc":
		if !numbered && rank > 0 {
			rest += "_dp" + strconv.Itoa(rank)
		}
	default:
		return "", fmt.Errorf("%q: only tcp, ipc, inproc, grpc and grpcs are known", template)
	}
	return scheme + "://" + rest, nil
}

func tcpAddress(rest, host string, rank int, numbered, dialled bool) (string, error) {
	at, portText, err := net.SplitHostPort(rest)
	if err != nil {
		return "", fmt.Errorf("tcp address: %w", err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil || port < 1 || port > 65535 {
		return "", fmt.Errorf("port %q must be a number from 1 to 65535", portText)
	}
	if !numbered {
		port += rank
	}
	if port > 65535 {
		return "", fmt.Errorf("port %s plus rank %d is above 65535", portText, rank)
	}
	if dialled && (at == "*" || at == "0.0.0.0" || at == "::") {
		at = strings.Trim(host, "[]")
	}
	return "tcp://" + net.JoinHostPort(at, strconv.Itoa(port)), nil
}

// only picks the operator's names, with the replica's reports about them.
func (s Spec) only(listed []replica.Model) []replica.Model {
	models := make([]replica.Model, len(s.Models))
	for i, name := range s.Models {
		models[i] = replica.Model{ID: name}
		if at := slices.IndexFunc(listed, func(m replica.Model) bool { return m.ID == name }); at >= 0 {
			models[i] = listed[at]
		}
	}
	return models
}
