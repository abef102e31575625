package intake

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/router/pools"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/pins"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// Responses knows which replica stores a response, and which tenant owns it.
type Responses struct {
	pins     *pins.Pins
	fleet    FleetPins
	upstream *upstream.Client
}

// MayRead reports whether a stored response may be read, continued or cancelled by the caller. Engines check no owner: the id
// suffices.
func (s *Responses) MayRead(ctx context.Context, rq *Request, id string) bool {
	tenant := rq.Call.Tenant
	_, owner := s.Pinned(ctx, tenant, id)
	return owner == pins.OwnerSelf || owner == pins.OwnerUnknown && (tenant == "" || rq.Settings.UnownedResponses)
}

// check refuses a request that continues a response of another tenant, on any route, and one that would give
// its own response a name of the caller's choice: it could be another tenant's.
func (s *Responses) check(ctx context.Context, rq *Request) error {
	if rq.Call.Tenant == "" || rq.Parsed == nil {
		return nil
	}
	if id := rq.Parsed.PreviousResponse; id != "" && !s.MayRead(ctx, rq, id) {
		return UnknownResponse(id)
	}
	if rq.Parsed.RequestID != "" && rq.Call.Route == openai.RouteResponses {
		return apierror.New(apierror.InvalidBody, "must be left out where callers have keys: the engine names the response", nil, apierror.WithParam("request_id"))
	}
	return nil
}

// UnknownResponse is what an engine says of a response that it does not have. One of another tenant is answered by the same
// bytes, and no engine is asked for either.
func UnknownResponse(id string) *apierror.Error {
	type body struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Param   string `json:"param"`
		Code    int    `json:"code"`
	}
	text := MustJSON(struct {
		Error body `json:"error"`
	}{body{"Response with id '" + Clip(id, 128) + "' not found.", "invalid_request_error", "response_id", http.StatusNotFound}})
	return apierror.Upstream(http.StatusNotFound, "application/json", text)
}

// FleetPins are the pins that the other routers of the fleet have made or keep.
type FleetPins interface {
	// PinMade has a new pin kept where each router finds it.
	PinMade(tenant, response string, id replica.ID)
	// FindPin enters another router's pin of a response in Pins, and reports whether there is one.
	FindPin(ctx context.Context, response string) bool
}

// KeepPin remembers where a response is stored, here and in the fleet.
func (s *Responses) KeepPin(tenant, response string, id replica.ID) {
	s.pins.Put(tenant, response, id)
	if s.fleet != nil && response != "" {
		s.fleet.PinMade(tenant, response, id)
	}
}

// Pinned returns where a response is stored and which tenant owns it, as Pins.Get does, from another router of the fleet when this
// one has not seen the response made.
func (s *Responses) Pinned(ctx context.Context, tenant, id string) (replica.ID, pins.Owner) {
	at, owner := s.pins.Get(tenant, id)
	if owner != pins.OwnerUnknown || s.fleet == nil || !s.fleet.FindPin(ctx, id) {
		return at, owner
	}
	return s.pins.Get(tenant, id)
}

// findHolder finds the replica that stores the response which the request continues: any other one
// would answer that there is none. Where no replica has it, any of them answers so.
func (s *Responses) findHolder(ctx context.Context, rq *Request) {
	id := rq.Parsed.PreviousResponse
	if id == "" || rq.Call.Route != openai.RouteResponses || len(rq.Pool.Replicas) < 2 {
		return
	}
	at, owner := s.Pinned(ctx, rq.Call.Tenant, id)
	known := owner == pins.OwnerSelf
	if !known {
		if at, known = s.locate(ctx, rq, id); known && rq.Call.Tenant == "" {
			s.KeepPin("", id, at)
		}
	}
	o := &rq.Call.Options
	if !known || !pools.Serves(rq.Pool, at) || slices.Contains(o.Denied, at) || len(o.Allowed) > 0 && !slices.Contains(o.Allowed, at) {
		return
	}
	rq.Holder = at
}

const (
	// locateTimeout bounds the search for a response that this router did not see made, locateAtOnce
	// the replicas that are asked in parallel.
	locateTimeout = time.Second
	locateAtOnce  = 16
)

// locate asks the pool's replicas which of them stores a response: another router saw it made, or this
// one before it was restarted.
func (s *Responses) locate(ctx context.Context, rq *Request, id string) (replica.ID, bool) {
	ctx, cancel := context.WithTimeout(ctx, locateTimeout)
	defer cancel()
	found := make(chan replica.ID, len(rq.Pool.Replicas))
	var all errgroup.Group
	all.SetLimit(locateAtOnce)
	for _, rep := range rq.Pool.Replicas {
		if rep.State != replica.StateReady && rep.State != replica.StateDraining {
			continue
		}
		all.Go(func() error {
			if s.stores(ctx, rep, id) {
				found <- rep.ID
				cancel() // no other replica has it
			}
			return nil
		})
	}
	_ = all.Wait() // no function fails
	select {
	case at := <-found:
		return at, true
	default:
		return "", false
	}
}

// stores asks one replica for a response.
func (s *Responses) stores(ctx context.Context, rep *replica.Replica, id string) bool {
	if ctx.Err() != nil {
		return false
	}
	resp, err := s.upstream.Do(ctx, upstream.Target{Replica: rep}, &upstream.Request{Method: http.MethodGet, Path: "/v1/responses/" + url.PathEscape(id), Header: http.Header{}})
	if err != nil {
		return false
	}
	defer resp.Close()
	return resp.Status == http.StatusOK
}

// Owns reports whether the caller made a response, as the fleet knows it.
func (s *Responses) Owns(ctx context.Context, rq *Request, id string) bool {
	_, owner := s.Pinned(ctx, rq.Call.Tenant, id)
	return owner == pins.OwnerSelf || owner == pins.OwnerUnknown && rq.Call.Tenant == ""
}
