package intake

import (
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/router/salts"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// isolate gives the request its tenant's salt: in the body that engines get, and in the keys of its blocks here.
func isolate(rq *Request) error {
	if rq.Settings.salts == nil {
		return nil
	}
	switch salts.On(rq.Call.Route, rq.Call.EnginePath()) {
	case salts.Needless:
		return nil
	case salts.Missing:
		if rq.Settings.UnsaltedRoutes == UnsaltedPass {
			return nil
		}
		return apierror.New(apierror.NotSupported, "the route has no cache_salt, which this router needs to keep tenants apart (router.unsalted_routes)", nil)
	case salts.Taken:
	}
	if raw := string(rq.Parsed.Raw("cache_salt")); rq.Parsed.Salt == "" && raw != "" && raw != "null" {
		return apierror.New(apierror.InvalidBody, "cache_salt must be a non-empty string", nil, apierror.WithParam("cache_salt"))
	}
	salt := rq.Settings.salts.Of(rq.Call.Tenant, rq.Parsed.Salt)
	rq.Parsed.Salt, rq.Parsed.Prompt.Salt, rq.Parsed.Prompt.Apart, rq.Isolated = salt, salt, rq.Call.Tenant, true
	rq.Parsed.Impose(openai.Edit{Name: "cache_salt", Value: append(append([]byte{'"'}, salt...), '"')})
	return nil
}

// denyOld denies the replicas on which vLLM ignores a cache_salt on the request's route.
func denyOld(rq *Request) error {
	if !rq.Isolated || rq.Settings.UnsaltedRoutes == UnsaltedPass {
		return nil
	}
	var old []replica.ID
	for _, rep := range rq.Pool.Replicas {
		if salts.Ignored(rep.Version, rq.Call.Route, rq.Call.EnginePath()) {
			old = append(old, rep.ID)
		}
	}
	switch {
	case len(old) == 0:
		return nil
	case len(old) == len(rq.Pool.Replicas):
		return apierror.New(apierror.NotSupported, "the replicas' vLLM has no cache_salt on this route, which this router needs to keep tenants apart (router.unsalted_routes)", nil)
	}
	o := &rq.Call.Options
	o.Denied = append(slices.Clip(o.Denied), old...)
	return nil
}
