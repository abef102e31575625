package ranks

import (
	"log/slog"
	"strconv"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// Config has the settings of the parts.
type Config struct {
	Registry registry.Config
	Index    kvindex.Config
	Events   kvevents.Config
	Stats    enginestats.Config
	Load     load.Config
}

// Params are the arguments of New.
type Params struct {
	// Env has the variables of the environment that settings name.
	Env registry.Environment
	// Watcher is informed of stored blocks; nil: none is.
	Watcher Watcher
	Scope   scope.Scope
}

// Watcher is informed of each event of stored blocks, before the index has them. It must not block or keep ev. Calls for different
// slots run in parallel.
type Watcher interface {
	Stored(slot replica.Slot, ev *kvblock.Stored)
}

// Followers are the parts that keep state per rank or replica. All but Peers are required.
type Followers struct {
	Chooser Chooser
	Tokens  Tokens
	Breaker Breaker
	// Peers are the other routers; nil for a router alone.
	Peers Peers
}

// Chooser chooses among the ranks.
type Chooser interface {
	AddRank(slot replica.Slot, r *replica.Replica, rank int)
	RemoveRank(slot replica.Slot)
	// Changed is called after each change of the fleet, Heard after each event of a rank.
	Changed()
	Heard(slot replica.Slot)
}

// Tokens compares the beginnings of stored prompts with its own tokens of them.
type Tokens interface {
	ObserveStored(model string, slot replica.Slot, ev *kvblock.Stored)
}

// Breaker forgets the replicas that are gone.
type Breaker interface {
	Retain(known func(replica.ID) bool)
}

// Peers are informed of changes by callers of this router.
type Peers interface {
	Drained(id replica.ID, drain *registry.Drain)
	Registered(spec registry.Spec, left time.Duration)
	Deregistered(id replica.ID)
}

// Ranks is the picture. Its parts are made once.
type Ranks struct {
	Registry *registry.Registry
	Index    *kvindex.Index
	Events   *kvevents.Plane
	Stats    *enginestats.Poller
	Book     *load.Book

	log       *slog.Logger
	watcher   Watcher
	followers Followers
	changes   chan struct{} // holds one token when the fleet has changed since the last one
}

// New makes the parts. c must be valid. It starts nothing.
func New(c Config, p Params) *Ranks {
	r := &Ranks{log: p.Scope.Log(), watcher: p.Watcher, changes: make(chan struct{}, 1)}
	part := p.Scope.Part
	r.Registry = registry.New(c.Registry, registry.Params{
		Scope: part("registry"), Env: p.Env,
		Observer: r, Reporter: r,
	})
	r.Index = kvindex.New(c.Index, kvindex.Params{Scope: part("kvindex"), Feeds: feeds{r}})
	r.Events = kvevents.New(c.Events, kvevents.Params{Sink: sink{r.Index, r}, Scope: part("kvevents")})
	r.Book = load.New(c.Load, load.Params{Scope: part("load"), Ranks: r})
	r.Stats = enginestats.New(c.Stats, enginestats.Params{Scope: part("enginestats"), Bookings: r, Observer: engines{r}})
	return r
}

// Join adds the parts that follow the ranks. It must be called before a part runs.
func (r *Ranks) Join(f Followers) { r.followers = f }

// Changes receives a token when the fleet has changed since the last one.
func (r *Ranks) Changes() <-chan struct{} { return r.changes }

// RankOf names the rank of a slot.
func (r *Ranks) RankOf(slot replica.Slot) (replica.Rank, bool) {
	found, rank, ok := r.Registry.Snapshot().BySlot(slot)
	if !ok {
		return replica.Rank{}, false
	}
	return replica.Rank{Replica: found.ID, Index: rank}, true
}

// IDs lists the replicas.
func (r *Ranks) IDs() []replica.ID {
	var ids []replica.ID
	for _, known := range r.Registry.Snapshot().Replicas {
		ids = append(ids, known.ID)
	}
	return ids
}

// InFlight counts this router's requests on a rank.
func (r *Ranks) InFlight(slot replica.Slot) int { return r.Book.View(slot, time.Now()).InFlight }

// textBeliefFor is how long a rank is believed to hold a prompt that is known by its text only,
// while no tokenizer answers: long enough for the next turn of a conversation.
const textBeliefFor = 10 * time.Minute

// Believe notes where a prompt went when its keys were made of its text.
func (r *Ranks) Believe(slot replica.Slot, hashes []blockhash.Hash) {
	if r.Index.State(slot) != kvblock.FeedNone {
		r.Index.Predict(slot, hashes, time.Now().Add(textBeliefFor))
	}
}

// nameOf names a rank in logs and metrics: as its replica, with a number where there are several.
func nameOf(r *replica.Replica, rank int) string {
	if len(r.Slots) < 2 {
		return string(r.ID)
	}
	return string(r.ID) + "/" + strconv.Itoa(rank)
}
