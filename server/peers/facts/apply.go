package facts

import (
	"context"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// dueLocked has a fact of a peer put in force.
func (s *Store) dueLocked(r ref) {
	s.due[r] = struct{}{}
	signal(s.apply)
}

// applyAll puts facts of peers in force until ctx ends.
func (s *Store) applyAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.apply:
		}
		s.mu.Lock()
		due := s.due
		s.due = map[ref]struct{}{}
		s.mu.Unlock()
		rates := false
		for r := range due {
			if r.kind == kindRate {
				rates = true
			} else if s.params.Registry != nil {
				s.applyOne(ctx, r)
			}
		}
		if rates {
			s.importRates()
		}
	}
}

// applyOne puts a drain or registration in force. The registry reads the fact in the order of its own changes: by then a caller
// of this router may have made a later one.
func (s *Store) applyOne(ctx context.Context, r ref) {
	id := replica.ID(r.key)
	var err error
	if r.kind == kindDrain {
		err = s.params.Registry.ApplyDrain(ctx, id, func() *registry.Drain {
			s.mu.Lock()
			defer s.mu.Unlock()
			e, known := s.drains.facts[r.key]
			if !known || e.gone {
				return nil
			}
			return &e.value
		})
	} else {
		err = s.params.Registry.ApplyRegistration(ctx, id, func() registry.Registration { return s.registrationOf(r.key) })
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	s.metrics.rejected()
	s.log.Warn("a fact of a peer cannot be put in force", "kind", r.kind.String(), "replica", r.key, "error", err)
}

// registrationOf is the present state of a registration.
func (s *known) registrationOf(key string) registry.Registration {
	s.mu.Lock()
	e := s.regs.facts[key]
	s.mu.Unlock()
	left := time.Until(e.value.until)
	if e.gone || left <= 0 {
		return registry.Registration{}
	}
	return registry.Registration{Spec: specOf(replica.ID(key), e.value.spec), Left: left}
}

// importRates passes on other deciders' learned speeds. It is repeated, because a rank may be found after its rate.
func (s *Store) importRates() {
	if s.params.Rates == nil {
		return
	}
	models, loads := map[replica.Rank]speed.Model{}, map[replica.Rank]transfer.Times{}
	s.mu.Lock()
	for _, e := range s.rates.facts {
		if e.version.router != s.params.Self {
			models[e.value.rank], loads[e.value.rank] = e.value.model, e.value.loads
		}
	}
	s.mu.Unlock()
	s.params.Rates.ImportModels(models)
	s.params.Rates.ImportLoads(loads)
}
