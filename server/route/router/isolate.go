package router

import (
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/router/salts"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// isolate gives the request its tenant's salt: in the body that engines get, and in the keys of its blocks here.
func isolate(rq *request) error {
	if rq.set.salts == nil {
		return nil
	}
	switch salts.On(rq.call.Route, rq.call.path()) {
	case salts.Needless:
		return nil
	case salts.Missing:
		if rq.set.UnsaltedRoutes == UnsaltedPass {
			return nil
		}
		return apierror.New(apierror.NotSupported, "the route has no cache_salt, which this router needs to keep tenants apart (router.unsalted_routes)", nil)
	case salts.Taken:
	}
	if raw := string(rq.parsed.Raw("cache_salt")); rq.parsed.Salt == "" && raw != "" && raw != "null" {
		return apierror.New(apierror.InvalidBody, "cache_salt must be a non-empty string", nil, apierror.WithParam("cache_salt"))
	}
	salt := rq.set.salts.Of(rq.call.Tenant, rq.parsed.Salt)
	rq.parsed.Salt, rq.parsed.Prompt.Salt, rq.parsed.Prompt.Apart, rq.isolated = salt, salt, rq.call.Tenant, true
	rq.parsed.Impose(openai.Edit{Name: "cache_salt", Value: append(append([]byte{'"'}, salt...), '"')})
	return nil
}

// denyOld denies the replicas on which vLLM ignores a cache_salt on the request's route.
func denyOld(rq *request) error {
	if !rq.isolated || rq.set.UnsaltedRoutes == UnsaltedPass {
		return nil
	}
	var old []replica.ID
	for _, rep := range rq.pool.Replicas {
		if salts.Ignored(rep.Version, rq.call.Route, rq.call.path()) {
			old = append(old, rep.ID)
		}
	}
	switch {
	case len(old) == 0:
		return nil
	case len(old) == len(rq.pool.Replicas):
		return apierror.New(apierror.NotSupported, "the replicas' vLLM has no cache_salt on this route, which this router needs to keep tenants apart (router.unsalted_routes)", nil)
	}
	o := &rq.call.Options
	o.Denied = append(slices.Clip(o.Denied), old...)
	return nil
}
