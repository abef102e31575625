package pools

import (
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// Serves reports whether a replica belongs to a pool.
func Serves(p *registry.Pool, id replica.ID) bool {
	return slices.ContainsFunc(p.Replicas, func(r *replica.Replica) bool { return r.ID == id })
}

// Unknown is a 404, unless a replica that could serve the model has not reported yet.
func Unknown(name string, s *registry.Snapshot) error {
	if s.Silent() > 0 && len(s.Models()) == 0 || len(s.Replicas) == 0 {
		return apierror.New(apierror.NoReplica, "no replica has reported its models yet", nil, apierror.WithRetryAfter(time.Second))
	}
	return apierror.New(apierror.ModelNotFound, s.UnknownModel(name), nil, apierror.WithParam("model"))
}

// FirstReady is the only model's pool, or the first one with a replica that takes requests.
func FirstReady(s *registry.Snapshot) (*registry.Pool, bool) {
	if pool, ok := s.Unnamed(); ok {
		return pool, true
	}
	for _, pool := range s.Models() {
		for _, rep := range pool.Replicas {
			if rep.State == replica.StateReady {
				return pool, true
			}
		}
	}
	return nil, false
}

// OnlyBase is the pool of the only base model.
func OnlyBase(s *registry.Snapshot) (*registry.Pool, bool) {
	var base *registry.Pool
	for _, pool := range s.Models() {
		if pool.Entry.Parent != "" {
			continue
		}
		if base != nil && base.Served != pool.Served {
			return nil, false
		}
		base = pool
	}
	return base, base != nil
}

// Any is the pool of a request without a body: the named model's, the only one, or, for a request that does not generate, any
// with a replica that takes requests.
func Any(s *registry.Snapshot, name string, generates bool) (*registry.Pool, error) {
	if name != "" {
		if pool, ok := s.Pool(name); ok {
			return pool, nil
		}
		return nil, Unknown(name, s)
	}
	if generates && len(s.Models()) > 0 {
		if pool, ok := s.Unnamed(); ok {
			return pool, nil
		}
		return nil, apierror.New(apierror.InvalidBody, "the gateway sends no body, and the router does not serve exactly one model: have it send bodies (request_body_mode)."+s.KnownModels(), nil, apierror.WithParam("model"))
	}
	if pool, ok := FirstReady(s); ok {
		return pool, nil
	}
	return nil, apierror.New(apierror.NoReplica, "no replica can take a request now", nil, apierror.WithRetryAfter(time.Second))
}

// Of is a pool with the replica; the given one where there is none.
func Of(s *registry.Snapshot, id replica.ID, otherwise *registry.Pool) *registry.Pool {
	for _, p := range s.Models() {
		if Serves(p, id) {
			return p
		}
	}
	return otherwise
}
