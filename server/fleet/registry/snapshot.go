package registry

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Snapshot is all that the registry knew at one moment. It never changes.
type Snapshot struct {
	// Replicas are all replicas in all states, by ID.
	Replicas []*replica.Replica

	byID    map[replica.ID]*replica.Replica
	details map[replica.ID]details
	probers map[replica.ID]*prober
	pools   map[string]*Pool
	names   []*Pool
	slots   []rankRef
	silent  int
	unnamed *Pool
	// superseded is closed with the next snapshot.
	superseded chan struct{}
}

type rankRef struct {
	replica *replica.Replica
	rank    int
}

// Pool is the replicas that serve one model.
type Pool struct {
	// Model is the name that the client used.
	Model string
	// Served is the name that the engines know; it differs from Model for an alias.
	Served string
	// Adapter is Served when that is a LoRA adapter, else empty.
	Adapter string
	// Entry is the model as the first of the replicas lists it.
	Entry replica.Model
	// Replicas are the replicas that list Served, in all states, by ID. At least one.
	Replicas []*replica.Replica
	// Pairs says that one of the replicas may prefill for another one.
	Pairs bool
}

// Details has facts about a replica for operators in addition to its view.
type Details struct {
	// Source is where the replica comes from: static, file, dns:NAME,
	// kubernetes:NAMESPACE/SERVICE or registered.
	Source string
	// Drained reports that an operator drains it, or that its source is about to remove it.
	Drained bool
	// Drain is the operator's drain; nil when there is none.
	Drain *Drain
	// Leaving reports that its source says that it is about to stop.
	Leaving bool
	// LastError is why the last probe failed; empty when it did not.
	LastError string
	// Failures is how many consecutive probes failed.
	Failures int
	// Probed is when the last probe ended.
	Probed time.Time
	// LeaseEnds is when a registration ends unless it is renewed.
	LeaseEnds time.Time
}

// Pool returns the replicas that serve model. A name of the form base:adapter, when no replica serves that name,
// means the adapter of that base model.
func (s *Snapshot) Pool(model string) (*Pool, bool) {
	if p, ok := s.pools[model]; ok {
		return p, true
	}
	colon := strings.LastIndexByte(model, ':')
	if colon < 0 {
		return nil, false
	}
	base, ok := s.pools[model[:colon]]
	if !ok {
		return nil, false
	}
	p, ok := s.pools[model[colon+1:]]
	return p, ok && p.AdapterOf(base)
}

// AdapterOf reports whether the pool's model is a LoRA adapter of the base model.
func (p *Pool) AdapterOf(base *Pool) bool {
	if p.Adapter == "" || base.Adapter != "" {
		return false
	}
	for _, r := range p.Replicas {
		if _, ok := r.Serves(base.Served); ok {
			return true
		}
	}
	return false
}

// Serving returns the replicas of the pool of a model, or of the model by the name that the replicas know; nil when there is neither.
func (s *Snapshot) Serving(model, served string) []*replica.Replica {
	for _, name := range []string{model, served} {
		if pool, ok := s.Pool(name); ok {
			return pool.Replicas
		}
	}
	return nil
}

// Unnamed returns the pool of a request without a model: the pool of the model that every
// replica lists first, because each would use that model itself.
func (s *Snapshot) Unnamed() (*Pool, bool) { return s.unnamed, s.unnamed != nil }

// Replica returns the replica with this id.
func (s *Snapshot) Replica(id replica.ID) (*replica.Replica, bool) {
	r, ok := s.byID[id]
	return r, ok
}

// Details returns the present facts about a replica for operators.
func (s *Snapshot) Details(id replica.ID) Details { return s.details[id].read() }

// Superseded returns a channel that is closed once there is a later snapshot.
func (s *Snapshot) Superseded() <-chan struct{} { return s.superseded }

// Models returns the pools of all names that clients may use, by name.
func (s *Snapshot) Models() []*Pool { return s.names }

// Silent is how many replicas have not reported yet which models they serve. While there are any, a
// model that no pool has may still turn up.
func (s *Snapshot) Silent() int { return s.silent }

// BySlot returns the replica and the rank index that a slot stands for.
func (s *Snapshot) BySlot(slot replica.Slot) (r *replica.Replica, rank int, ok bool) {
	if int(slot) >= len(s.slots) || s.slots[slot].replica == nil {
		return nil, 0, false
	}
	ref := s.slots[slot]
	return ref.replica, ref.rank, true
}

// reported reports whether there are replicas and each of them has answered or failed a probe: from then on, a model that no
// pool has is one that no replica serves.
func (s *Snapshot) reported() bool {
	for _, r := range s.Replicas {
		if len(r.Models) == 0 && s.details[r.ID].LastError == "" {
			return false
		}
	}
	return len(s.Replicas) > 0
}

// newSnapshot joins the entries' views.
func newSnapshot(entries map[replica.ID]*entry, aliases map[string]string) *Snapshot {
	s := &Snapshot{
		Replicas: make([]*replica.Replica, 0, len(entries)),
		byID:     make(map[replica.ID]*replica.Replica, len(entries)),
		details:  make(map[replica.ID]details, len(entries)),
		probers:  make(map[replica.ID]*prober, len(entries)),
		pools:    map[string]*Pool{}, superseded: make(chan struct{}),
	}
	for id, e := range entries {
		s.Replicas = append(s.Replicas, e.view)
		s.byID[id] = e.view
		s.details[id] = e.details()
		s.probers[id] = e.prober
	}
	slices.SortFunc(s.Replicas, func(a, b *replica.Replica) int { return cmp.Compare(a.ID, b.ID) })
	for _, r := range s.Replicas {
		s.addSlots(r)
		s.addModels(r)
	}
	for _, p := range s.pools {
		p.Pairs = replica.CanPair(p.Replicas)
	}
	s.addAliases(aliases)
	s.unnamed = s.firstOfAll()
	for _, p := range s.pools {
		s.names = append(s.names, p)
	}
	slices.SortFunc(s.names, func(a, b *Pool) int { return cmp.Compare(a.Model, b.Model) })
	return s
}

func (s *Snapshot) addSlots(r *replica.Replica) {
	for rank, slot := range r.Slots {
		if missing := int(slot) + 1 - len(s.slots); missing > 0 {
			s.slots = append(s.slots, make([]rankRef, missing)...)
		}
		s.slots[slot] = rankRef{r, rank}
	}
}

func (s *Snapshot) addModels(r *replica.Replica) {
	if len(r.Models) == 0 {
		s.silent++
	}
	for _, m := range r.Models {
		p := s.pools[m.ID]
		if p == nil {
			p = &Pool{Model: m.ID, Served: m.ID, Entry: m}
			if m.Parent != "" {
				p.Adapter = m.ID
			}
			s.pools[m.ID] = p
		}
		if n := len(p.Replicas); n == 0 || p.Replicas[n-1] != r { // a name listed twice counts once
			p.Replicas = append(p.Replicas, r)
		}
	}
}

// firstOfAll is the pool of the base model that all replicas list first; nil when they differ.
func (s *Snapshot) firstOfAll() *Pool {
	name := ""
	for _, r := range s.Replicas {
		for _, m := range r.Models {
			if m.Parent != "" {
				continue
			}
			if name != "" && name != m.ID {
				return nil
			}
			name = m.ID
			break
		}
	}
	return s.pools[name]
}

// addAliases gives each alias of a served model a pool of its own. An alias hides a served
// model of the same name: the operator's setting has precedence over the engine's list.
func (s *Snapshot) addAliases(aliases map[string]string) {
	made := map[string]*Pool{}
	for alias, served := range aliases {
		if target, ok := s.pools[served]; ok {
			p := *target
			p.Model = alias
			made[alias] = &p
		}
	}
	for alias, p := range made {
		s.pools[alias] = p
	}
}
