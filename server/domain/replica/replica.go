package replica

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
)

// ID names a replica. It is stable across restarts of the engine behind it, unique within a
// router, and safe to show to clients (it is a name, not an address).
type ID string

// Slot is the dense number of one rank of one replica in this process. The registry hands
// slots out from zero and reuses one only after every part was notified that its rank was removed.
type Slot uint32

// NoSlot is the slot of no rank.
const NoSlot = ^Slot(0)

// Rank names one data-parallel rank of a replica; its index counts from zero.
type Rank struct {
	Replica ID
	Index   int
}

// State says what a replica may be used for.
type State uint8

// The states of a replica.
const (
	// StateStarting: known, but not yet seen healthy. It takes no requests.
	StateStarting State = iota
	// StateReady: takes requests.
	StateReady
	// StateDraining: finishes its requests and takes nothing new.
	StateDraining
	// StateUnhealthy: failed its probes or too many requests. It takes no requests until it recovers.
	StateUnhealthy
)

// String gives the state in the form that metrics, logs and JSON use.
func (s State) String() string {
	switch s {
	case StateStarting:
		return "starting"
	case StateReady:
		return "ready"
	case StateDraining:
		return "draining"
	case StateUnhealthy:
		return "unhealthy"
	}
	return "unknown"
}

// Model is one model name that a replica serves, as its /v1/models lists it.
type Model struct {
	// ID is the name that clients use.
	ID string
	// Root is the path or name of the weights; empty when the replica does not say.
	Root string
	// Parent is the base model's name when this is a LoRA adapter, else empty.
	Parent string
	// MaxLen is the context length in tokens; 0 when unknown.
	MaxLen int
}

// Events says where a rank publishes its KV cache events.
type Events struct {
	// Endpoint is the ZMQ PUB address, for example "tcp://10.0.0.7:5557"; empty when the rank publishes none.
	// "grpc://host:port" is vLLM's Control service, which reports the addresses of its rank number Rank.
	Endpoint string
	// Rank is the data-parallel rank that Endpoint is asked for.
	Rank int
	// Bind makes the router bind Endpoint and the engine dial it.
	Bind bool
	// Replay is the ZMQ ROUTER address for replays; empty when there is none.
	Replay string
	// Topic is the subscription prefix; empty takes everything.
	Topic string
}

// Replica is the immutable view of one replica at one moment.
type Replica struct {
	ID ID
	// URL is the base URL without a trailing slash, for example "http://10.0.0.7:8000".
	URL string
	// MetricsURL is the base URL of its metrics without a trailing slash; empty: URL.
	MetricsURL string
	// APIKey is sent as a bearer token to the replica; empty sends none.
	APIKey secret.String
	// TLS is how the router speaks TLS with it; nil: the defaults.
	TLS   *tlspeer.Identity
	State State
	// Life counts the engine processes seen behind this ID: it grows when a restart is noticed.
	Life uint64
	// Slots has one entry per data-parallel rank, in rank order.
	Slots []Slot
	// Events has one entry per rank, in rank order; it may be shorter when ranks publish nothing.
	Events []Events
	// Models lists the served names, base models first.
	Models []Model
	// Labels are the operator's own key-value pairs (zone, tier, ...).
	Labels map[string]string
	// Version is vLLM's version ("0.24.0"), empty when unknown.
	Version string
	// RustFrontend reports whether it is the Rust front end instead of the Python one.
	RustFrontend bool
	// BlockSize is the KV block size in tokens; 0 when not yet learned.
	BlockSize int
	// Blocks is the number of GPU blocks per rank; 0 when unknown.
	Blocks int
	// MaxBatchedTokens is the engine's token budget per step; 0 when unknown.
	MaxBatchedTokens int
	// Mute says that the replica is unhealthy because nothing comes back from its probes, not because they are
	// refused or say so: it is gone, or stopped, or busy, or the way to it is.
	Mute bool
	// DrainedRanks are the ranks that take nothing new while the others do, in order. All ranks of a replica in StateDraining are drained.
	DrainedRanks []int
	// Since is when the replica entered its present State.
	Since time.Time
}

// IsRankDrained reports whether a rank takes nothing new while others of the replica do.
func (r *Replica) IsRankDrained(rank int) bool {
	return len(r.DrainedRanks) > 0 && slices.Contains(r.DrainedRanks, rank)
}

// Metrics returns the base URL of the replica's metrics.
func (r *Replica) Metrics() string { return cmp.Or(r.MetricsURL, r.URL) }

// LabelEngine is the label that names the engine, where the operator or the pod says it.
const LabelEngine = "engine"

// IsForeign reports whether the label names another engine than vLLM, which does not understand vLLM's own routes.
func (r *Replica) IsForeign() bool {
	engine := strings.ToLower(r.Labels[LabelEngine])
	return engine != "" && !strings.HasPrefix(engine, "vllm")
}

// Serves reports whether the replica serves model, and returns the entry.
func (r *Replica) Serves(model string) (Model, bool) {
	for _, m := range r.Models {
		if m.ID == model {
			return m, true
		}
	}
	return Model{}, false
}
