package replica

import (
	"cmp"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// The labels that describe how an engine passes KV cache to others. They come from settings, pods or registrations.
const (
	// LabelConnector names the engine's KV connector: nixl, nixl-push or mooncake.
	LabelConnector = "kv_connector"
	// LabelRole is the part that the replica may take in a split request: prefill, decode or both.
	LabelRole = "role"
	// LabelGroup separates engines that cannot read each other's cache although they report the same version and block size.
	LabelGroup = "kv_group"
	// LabelDomain names the part of the network that the replica is in; without it, LabelZone counts.
	LabelDomain = "kv_domain"
	// LabelStore names the store of KV cache below host memory that the replica shares with others of the same name.
	LabelStore = "kv_store"
	// LabelInstance is the name under which a directory outside the router knows the replica's cache.
	LabelInstance = "kv_instance"
	LabelZone     = "zone"
	// LabelBootstrap is where a Mooncake engine that prefills answers for its transfers: an address, or a port of the replica's host.
	LabelBootstrap = "kv_bootstrap"
)

// Transport is the way in which engines pass KV cache on.
type Transport uint8

const (
	// NoTransport is for an engine without a connector, or with one that the router does not use.
	NoTransport Transport = iota
	// NIXL is vLLM's NixlConnector in its pull form: the engine that decodes reads the blocks of the engine that prefilled.
	NIXL
	// NIXLPush is vLLM's NixlPushConnector: the engine that prefilled writes the blocks of the decoding one. They pair legs by the request
	// id that both were sent; a leg without its pair waits for good.
	NIXLPush
	// Mooncake is vLLM's MooncakeConnector: the engine that decodes asks the other engine's bootstrap server, by the name of the
	// transfer and the id of that engine's process. It waits for good when either is gone.
	Mooncake
)

// String gives the transport in the form that settings and metrics use; empty for none.
func (t Transport) String() string {
	switch t {
	case NIXL:
		return "nixl"
	case NIXLPush:
		return "nixl-push"
	case Mooncake:
		return "mooncake"
	case NoTransport:
	}
	return ""
}

// ReadTransport reads a transport's name; false when it is unknown. The empty name is none.
func ReadTransport(name string) (Transport, bool) {
	switch strings.ToLower(name) {
	case "":
		return NoTransport, true
	case "nixl":
		return NIXL, true
	case "nixl-push":
		return NIXLPush, true
	case "mooncake":
		return Mooncake, true
	}
	return NoTransport, false
}

// Role is the part that a replica may take in a split request.
type Role uint8

const (
	// AnyRole may prefill, decode, or serve a request whole. Engines with NIXL are all able to.
	AnyRole Role = iota
	// PrefillOnly computes prompts for others. It serves a request whole only when no other replica can.
	PrefillOnly
	// DecodeOnly computes no prompts for others.
	DecodeOnly
)

// String gives the role in the form that settings use.
func (r Role) String() string {
	switch r {
	case PrefillOnly:
		return "prefill"
	case DecodeOnly:
		return "decode"
	case AnyRole:
	}
	return "both"
}

// ReadRole reads a role; false when it is unknown, which counts as both.
func ReadRole(name string) (Role, bool) {
	switch strings.ToLower(name) {
	case "prefill":
		return PrefillOnly, true
	case "decode":
		return DecodeOnly, true
	case "", "both", "prefill-decode":
		return AnyRole, true
	}
	return AnyRole, false
}

// Connector is a replica's place among the replicas that pass KV cache to each other.
type Connector struct {
	Transport Transport
	Role      Role
	// Group holds the replicas that can read each other's cache. It is empty only without a transport.
	Group string
	// Domain is the part of the network that the replica is in; empty when it is not known.
	Domain string
}

// Transport returns the way in which the replica passes KV cache on.
func (r *Replica) Transport() Transport {
	t, _ := ReadTransport(r.Labels[LabelConnector])
	return t
}

// bootstrapPort is the port of Mooncake's bootstrap server without a label (VLLM_MOONCAKE_BOOTSTRAP_PORT).
const bootstrapPort = "8998"

// Bootstrap is the base URL of the replica's bootstrap server; empty when its own URL has no host.
func (r *Replica) Bootstrap() string {
	at := r.Labels[LabelBootstrap]
	switch {
	case strings.Contains(at, "://"):
		return strings.TrimSuffix(at, "/")
	case strings.Contains(at, ":"):
		return "http://" + at
	}
	base, err := url.Parse(r.URL)
	if err != nil || base.Hostname() == "" {
		return ""
	}
	return "http://" + net.JoinHostPort(base.Hostname(), cmp.Or(at, bootstrapPort))
}

// Connector returns the replica's connector, the zero value for none. vLLM compares a hash of its version, block size, data type and
// parallelism when two engines meet: the first two are known here, the label kv_group stands for the rest.
func (r *Replica) Connector() Connector {
	t := r.Transport()
	if t == NoTransport {
		return Connector{}
	}
	role, _ := ReadRole(r.Labels[LabelRole])
	return Connector{
		Transport: t, Role: role, Domain: cmp.Or(r.Labels[LabelDomain], r.Labels[LabelZone]),
		Group: t.String() + "/" + r.Version + "/" + strconv.Itoa(r.BlockSize) + "/" + r.Labels[LabelGroup],
	}
}

// Prefills reports whether a replica with the connector may compute prompts for others.
func (c *Connector) Prefills() bool { return c.Transport != NoTransport && c.Role != DecodeOnly }

// Decodes reports whether a replica with the connector may answer from the cache that another one computed.
func (c *Connector) Decodes() bool { return c.Transport != NoTransport && c.Role != PrefillOnly }

// CanPair reports whether one of the replicas may prefill for another one.
func CanPair(replicas []*Replica) bool {
	var groups map[string]*group
	for _, r := range replicas {
		if r.Labels[LabelConnector] == "" {
			continue
		}
		c := r.Connector()
		if c.Transport == NoTransport {
			continue
		}
		if groups == nil {
			groups = map[string]*group{}
		}
		g := groups[c.Group]
		if g == nil {
			g = &group{}
			groups[c.Group] = g
		}
		g.members++
		g.prefill, g.decode = g.prefill || c.Prefills(), g.decode || c.Decodes()
		if g.members > 1 && g.prefill && g.decode {
			return true
		}
	}
	return false
}

// group has the permissions of a group's members.
type group struct {
	members         int
	prefill, decode bool
}
