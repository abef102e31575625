package splits

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// Splits shares requests and compares the sides. Make one with New.
type Splits struct {
	log     *slog.Logger
	metrics *metrics
	fleet   Fleet // nil: a router alone

	mu     sync.Mutex
	config Config            // guarded by mu
	models map[string][]Side // the settings', by model; replaced as a whole; guarded by mu
	splits map[string]*split // by model; guarded by mu
	wished map[wish]*Back    // of sides without a request so far; guarded by mu
}

// wish names a side that another router of the fleet was asked to send back.
type wish struct{ model, side string }

// Fleet is the other routers. SteppedBack has them send a side back, too; it must not block.
type Fleet interface {
	SteppedBack(model, side string)
}

// Params is what code passes to New. Nil fields are valid.
type Params struct {
	Fleet Fleet
	Scope scope.Scope
}

// New makes Splits of a valid Config.
func New(c Config, p Params) *Splits {
	s := &Splits{log: p.Scope.Log(), fleet: p.Fleet, splits: map[string]*split{}, wished: map[wish]*Back{}}
	s.metrics = newMetrics(p.Scope.Meters(), s)
	s.setConfig(c)
	return s
}

// Update puts new settings in force, for requests that begin from now on. What was counted stays.
func (s *Splits) Update(c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	s.setConfig(c)
	return nil
}

func (s *Splits) setConfig(c Config) {
	models := make(map[string][]Side, len(c.Models))
	for _, m := range c.Models {
		models[m.Model] = m.Sides
	}
	s.mu.Lock()
	s.config, s.models = c, models
	s.mu.Unlock()
}

// Of returns the sides of the settings for a model; nil when they do not split it. The list must not be changed.
func (s *Splits) Of(model string) []Side {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.models[model]
}

// split is what is known of the sides of one model.
type split struct {
	model string
	used  time.Time
	sides []*side
	// sessions are those of the round of the comparison; see judge.go.
	sessions map[uint64]struct{}
}

// side is the state of a side.
type side struct {
	Side
	name   string
	ready  bool // as of the last request
	recent recent
	round  sample
	looks  int   // that were made in the round
	back   *Back // nil while it gets requests
}

// actorRule is Back.By of a side that the rule sent back.
const actorRule = "rule"

// Assignment is a request's side. Nil is none; its methods are safe for a nil Assignment.
type Assignment struct {
	owner *Splits
	split *split
	side  *side
	key   uint64
	// Split is the model that was split, Side the name of the request's side.
	Split, Side string
	// InsteadOf is the side that the weights would have given, where that has stepped back or has no ready replica; empty elsewhere.
	InsteadOf string
	// Model is the model that the request gets, Labels what its replicas must have.
	Model  string
	Labels map[string]string
}

// Assign picks the side of a request for model. Requests with the same key, such as those of a session, get the same side while its weight
// stays. ready reports whether a side has a replica that could serve; where none has, the sides are taken as they are. It returns nil when
// no side has a weight.
func (s *Splits) Assign(model string, sides []Side, key string, ready func(Side) bool) *Assignment {
	if s == nil || len(sides) == 0 {
		return nil
	}
	sides = sides[:min(len(sides), mostSides)]
	able := make([]bool, len(sides))
	for i, one := range sides {
		able[i] = ready(one) // outside of the lock
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.splitOf(model, sides, now)
	weights := make([]uint64, len(sides))
	for i, one := range sp.sides {
		weights[i], one.ready = uint64(max(0, one.Weight)), able[i]
	}
	first := pick(weights, place(model, key, 0))
	if first < 0 {
		return nil
	}
	chosen := first
	if one := sp.sides[first]; one.back != nil || !one.ready {
		for i, other := range sp.sides {
			if other.back != nil || !other.ready {
				weights[i] = 0
			}
		}
		if n := pick(weights, place(model, key, 1)); n >= 0 {
			chosen = n
		} else if n := baseline(sp.sides); one.back != nil { // none is ready
			chosen = n
		}
	}
	to := sp.sides[chosen]
	a := &Assignment{
		owner: s, split: sp, side: to, key: xxh3.HashString(key), Split: model, Side: to.name,
		Model: cmp.Or(to.Model, model), Labels: to.Labels,
	}
	if chosen != first {
		a.InsteadOf = sp.sides[first].name
	}
	return a
}

// splitOf is the state of a split, guarded by mu. What was counted of other sides than these is dropped.
func (s *Splits) splitOf(model string, sides []Side, now time.Time) *split {
	sp := s.splits[model]
	if sp == nil || !sp.has(model, sides) {
		if sp == nil && len(s.splits) >= mostSplits {
			oldest := slices.MinFunc(slices.Collect(maps.Values(s.splits)), func(a, b *split) int { return a.used.Compare(b.used) })
			delete(s.splits, oldest.model)
		}
		old := sp
		sp = &split{model: model, sessions: map[uint64]struct{}{}}
		for _, one := range sides {
			fresh := &side{Side: one, name: one.name(model), ready: true}
			if was := old.side(fresh.name); was != nil && was.same(one) {
				fresh.recent, fresh.back = was.recent, was.back
			}
			if back := s.wished[wish{model, fresh.name}]; back != nil {
				s.setBack(sp, fresh, back)
				delete(s.wished, wish{model, fresh.name})
			}
			sp.sides = append(sp.sides, fresh)
		}
		s.splits[model] = sp
	}
	for i, one := range sides {
		sp.sides[i].Weight = one.Weight
	}
	sp.used = now
	return sp
}

// has reports whether the split has these sides, whatever their weights.
func (sp *split) has(model string, sides []Side) bool {
	return slices.EqualFunc(sp.sides, sides, func(a *side, b Side) bool { return a.name == b.name(model) && a.same(b) })
}

func (d *side) same(b Side) bool { return d.Model == b.Model && maps.Equal(d.Labels, b.Labels) }

// side returns the one of a name; nil without one.
func (sp *split) side(name string) *side {
	if sp == nil {
		return nil
	}
	for _, one := range sp.sides {
		if one.name == name {
			return one
		}
	}
	return nil
}

// baseline is the index of the side that the others are compared with: the first one with the largest weight of those that get requests.
func baseline(sides []*side) int {
	best := -1
	for i, one := range sides {
		if one.back == nil && (best < 0 || one.Weight > sides[best].Weight) {
			best = i
		}
	}
	return max(0, best)
}

// Ended counts the end of a request. Each request must be counted once at most.
func (a *Assignment) Ended(e End) {
	if a == nil {
		return
	}
	a.owner.ended(a, e, time.Now())
}

func (s *Splits) ended(a *Assignment, e End, now time.Time) {
	s.metrics.ended(a, e)
	s.mu.Lock()
	defer s.mu.Unlock()
	a.side.recent.add(e, now)
	sp := a.split
	if s.splits[sp.model] != sp { // its sides are others by now
		return
	}
	if _, again := sp.sessions[a.key]; again || a.side.back != nil {
		return
	}
	sp.sessions[a.key] = struct{}{}
	a.side.round.add(e)
	s.compare(sp, now)
}

// compare looks at the sides for which it is time.
func (s *Splits) compare(sp *split, now time.Time) {
	base, least := sp.sides[baseline(sp.sides)], uint32(s.config.StepBackSessions)
	over := len(sp.sides) > 1
	for _, one := range sp.sides {
		if one == base || one.back != nil || one.Weight == 0 {
			continue
		}
		if base.round.requests >= least && one.round.requests >= least<<one.looks {
			one.looks++
			if why := verdict(&base.round, &one.round); why != "" && s.config.StepBack {
				s.setBack(sp, one, &Back{At: now, Why: why, By: actorRule})
				if s.fleet != nil {
					s.fleet.SteppedBack(sp.model, one.name)
				}
			}
		}
		over = over && one.looks >= looks
	}
	if over || len(sp.sessions) >= roundSessions {
		sp.restart()
	}
}

// restart begins a round.
func (sp *split) restart() {
	clear(sp.sessions)
	for _, one := range sp.sides {
		one.round, one.looks = sample{}, 0
	}
}
