package facts

import (
	"context"
	"log/slog"
	"math"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// Registry is where drains and registrations are put in force.
type Registry interface {
	// Present reports whether there is a replica, so that its drain is kept. It is asked while the Store is locked: it must not wait
	// for a lock under which the Store is called.
	Present(id replica.ID) bool
	ApplyDrain(ctx context.Context, id replica.ID, drain func() *registry.Drain) error
	ApplyRegistration(ctx context.Context, id replica.ID, registration func() registry.Registration) error
}

// Rates is where the speed of ranks is learned.
type Rates interface {
	// ExportModels lists the speeds that this router has learned itself.
	ExportModels() map[replica.Rank]speed.Model
	// ImportModels takes the speeds that deciders have learned.
	ImportModels(models map[replica.Rank]speed.Model)
	// ExportLoads lists the times of loads from tiers below the GPU that this router has seen itself, and ImportLoads takes other routers' times.
	ExportLoads() map[replica.Rank]transfer.Times
	ImportLoads(loads map[replica.Rank]transfer.Times)
}

// Pins is where the pins of stored responses are kept.
type Pins interface {
	Put(tenant, response string, id replica.ID)
	// Find returns a pin, whichever tenant it belongs to.
	Find(response string) (tenant string, id replica.ID, ok bool)
}

// Fleet is this router's view of the others.
type Fleet interface {
	// FactPeers lists the peers that there is a connection to.
	FactPeers() []Peer
	// Decides reports whether this router decides for a replica, so that it publishes its learned speeds.
	Decides(id replica.ID) bool
}

// Params has the arguments of New. Self and Fleet are needed; parts that are nil take no part.
type Params struct {
	// Self is the id of this router.
	Self     string
	Fleet    Fleet
	Registry Registry
	Rates    Rates
	Pins     Pins
	Scope    scope.Scope
}

const (
	// keepGone is how long facts that are no longer true are kept.
	keepGone = 24 * time.Hour
	// keepRates is how long rates are kept without a newer version.
	keepRates = time.Hour
	// The bounds of the tables.
	maxDrains, maxRegistrations, maxRates = 10_000, 10_000, 16_384
	maxRegistrationBytes                  = 32 << 20
	// changedRate is the relative change from which a rate is published again.
	changedRate = 0.02
)

// registration is a registered replica.
type registration struct {
	spec  *peerv1.Registration
	until time.Time
}

// rate is the learned speed of one rank, with the times of its loads from tiers below its GPU.
type rate struct {
	rank  replica.Rank
	model speed.Model
	loads transfer.Times
}

// Store is the facts that this router knows.
type Store struct {
	params  Params
	log     *slog.Logger
	metrics *metrics

	known
	clock   clock
	senders map[string]*sender // by peer; guarded by mu
	due     map[ref]struct{}   // to be put in force; guarded by mu
	apply   chan struct{}      // holds one token when something is due
	peers   chan struct{}      // holds one token when the peers have changed
}

// known has the facts by kind. Its mu guards the Store, too.
type known struct {
	mu     sync.Mutex
	drains *table[registry.Drain]
	regs   *table[registration]
	rates  *table[rate]
}

// ref names a fact.
type ref struct {
	kind kind
	key  string
}

// New returns a Store without facts. It starts nothing.
func New(p Params) *Store {
	s := &Store{
		params: p, log: p.Scope.Log(), clock: clock{router: p.Self},
		known: known{
			drains: newTable[registry.Drain](kindDrain, keepGone, 0, maxDrains, math.MaxInt),
			regs:   newTable[registration](kindRegistration, keepGone, 0, maxRegistrations, maxRegistrationBytes),
			rates:  newTable[rate](kindRate, keepRates, keepRates, maxRates, math.MaxInt),
		},
		senders: map[string]*sender{}, due: map[ref]struct{}{},
		apply: make(chan struct{}, 1), peers: make(chan struct{}, 1),
	}
	s.drains.registry = p.Registry
	s.metrics = newMetrics(p.Scope.Meters(), s)
	return s
}

// Drained notes that a caller of this router has drained a replica, or undrained it: drain is nil.
func (s *Store) Drained(id replica.ID, drain *registry.Drain) {
	now := time.Now()
	e := entry[registry.Drain]{gone: drain == nil, met: true}
	if drain != nil {
		e.value = *drain
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.version = s.clock.next(now)
	if s.drains.put(string(id), e, now) {
		s.spreadLocked(ref{kindDrain, string(id)})
	}
}

// Registered notes that a caller of this router has registered a replica or renewed its registration. A renewal is published
// while peers have the longer part of the lease left.
func (s *Store) Registered(spec registry.Spec, left time.Duration) {
	wire := specProto(spec)
	size := proto.Size(wire)
	if err := tooLarge(size); err != nil {
		s.log.Warn("a registration is not shared with the other routers", "replica", string(spec.ID), "error", err)
		return
	}
	now := time.Now()
	until := now.Add(left)
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.regs.facts[string(spec.ID)]
	if known && !old.gone && proto.Equal(old.value.spec, wire) && old.value.until.Sub(now) > left*3/4 && old.value.until.Sub(until) <= 0 {
		return
	}
	e := entry[registration]{version: s.clock.next(now), value: registration{wire, until}, size: size}
	if s.regs.put(string(spec.ID), e, now) {
		s.spreadLocked(ref{kindRegistration, string(spec.ID)})
	}
}

// Deregistered notes that a caller of this router has withdrawn a registration.
func (s *Store) Deregistered(id replica.ID) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.regs.put(string(id), entry[registration]{version: s.clock.next(now), gone: true}, now) {
		s.spreadLocked(ref{kindRegistration, string(id)})
	}
}

// publishRates makes facts of this router's learned speeds of the ranks for which it decides.
func (s *Store) publishRates() {
	if s.params.Rates == nil {
		return
	}
	now, loads := time.Now(), s.params.Rates.ExportLoads()
	for rank, model := range s.params.Rates.ExportModels() {
		if !s.params.Fleet.Decides(rank.Replica) {
			continue
		}
		key := rateKey(rank)
		s.mu.Lock()
		if old, known := s.rates.facts[key]; !known || differ(&old.value.model, &model) || loadsDiffer(old.value.loads, loads[rank]) || old.version.age(now) > keepRates/2 {
			if s.rates.put(key, entry[rate]{version: s.clock.next(now), value: rate{rank, model, loads[rank]}}, now) {
				s.spreadLocked(ref{kindRate, key})
			}
		}
		s.mu.Unlock()
	}
}

func rateKey(r replica.Rank) string { return strconv.Itoa(r.Index) + "/" + string(r.Replica) }

// differ reports whether a model has changed enough to be published again.
func differ(a, b *speed.Model) bool {
	return far(a.Token, b.Token) || far(a.Bend, b.Bend) || far(a.Overhead, b.Overhead) || far(a.Base, b.Base) || far(a.Load, b.Load) ||
		a.Samples < sure && b.Samples >= 2*a.Samples
}

// far reports whether two numbers of a rate differ enough.
func far(x, y float64) bool { return math.Abs(x-y) > changedRate*math.Max(math.Abs(x), math.Abs(y)) }

// loadsDiffer reports whether the times of loads have changed enough to be published again.
func loadsDiffer(a, b transfer.Times) bool {
	return far(a.Host.Start, b.Host.Start) || far(a.Host.PerToken, b.Host.PerToken) || far(a.Store.Start, b.Store.Start) || far(a.Store.PerToken, b.Store.PerToken)
}

// sure is the number of samples above which more of them make no difference.
const sure = 64

// expire drops the facts whose time is over, and notes the registrations whose lease is.
func (s *Store) expire() {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, e := range s.regs.facts {
		if !e.gone && !e.value.until.After(now) {
			s.regs.bytes -= e.size
			e.value, e.gone, e.size = registration{}, true, 0
			s.regs.facts[key] = e // the version stays: each router notes this by itself
		}
	}
	for _, key := range s.drains.expire(now) {
		s.dueLocked(ref{kindDrain, key}) // the registry drops it too
	}
	s.regs.expire(now)
	s.rates.expire(now)
}

// digest is equal on routers that know the same facts.
func (s *known) digestLocked() uint64 { return s.drains.digest ^ s.regs.digest ^ s.rates.digest }

func (s *known) digest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.digestLocked()
}
