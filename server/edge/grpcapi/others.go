package grpcapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"google.golang.org/grpc"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/peers/forward"
)

// others passes calls on to the other routers of the fleet.
type others struct {
	peers        *forward.Fleet // nil without a fleet
	senders      *senders
	pools        pools
	tenantHeader string
}

// of is the other routers as this call may ask them: none for a call that one of them has passed on.
func (o *others) of(ctx context.Context) *forward.Fleet {
	if o.peers == nil || passedOn(ctx) != nil {
		return nil
	}
	return o.peers
}

// onward is the context of a call that is passed on to another router.
func (o *others) onward(ctx context.Context) context.Context {
	c := sent(ctx)
	h := http.Header{}
	for name, values := range c.Header {
		if name != o.tenantHeader {
			h[name] = values
		}
	}
	if c.RequestID != "" {
		h.Set("X-Request-Id", c.RequestID)
	}
	return forward.Send(ctx, o.senders.of(ctx), c.Client, h)
}

// reportPatience is how long a report may take at the router that owns the reservation.
const reportPatience = time.Second

// toOwner passes a report on to the router that made the reservation. passed is false when that is this one, or none.
func toOwner[In, Out any](ctx context.Context, o *others, id string, in In, send func(kvpilotv1.RoutingServiceClient, context.Context, In, ...grpc.CallOption) (Out, error)) (out Out, isPassed bool, err error) {
	fleet := o.of(ctx)
	if fleet == nil {
		return out, false, nil
	}
	owner, err := fleet.Owner(id)
	if err != nil {
		return out, true, err
	}
	if owner == nil {
		if by := forward.OwnerID(id); by != "" && by != fleet.Self().ID { // what is booked here of it ends by itself
			return out, true, reservationNotFound()
		}
		return out, false, nil
	}
	ctx, cancel := context.WithTimeout(o.onward(ctx), reportPatience)
	defer cancel()
	out, err = send(owner.Routing, ctx, in)
	return out, true, forward.Error(err)
}

// deciderFor returns the other router that decides for a model, nil when this one does. Without a model's name the body's counts, or
// that of the only model.
func (o *others) deciderFor(ctx context.Context, model string, body []byte) *forward.Peer {
	fleet := o.of(ctx)
	if fleet == nil {
		return nil
	}
	if model == "" && len(body) > 0 {
		var named struct {
			Model string `json:"model"`
		}
		if json.Unmarshal(body, &named) == nil {
			model = named.Model
		}
	}
	if model == "" {
		only := o.pools.models()
		if len(only) != 1 {
			return nil
		}
		model = only[0]
	}
	return fleet.Peer(fleet.Decider(model))
}

// asDecider has a question that books nothing answered by the router that decides for the model. passed is false when that is this
// one, or does not answer.
func asDecider[Out any](ctx context.Context, o *others, model string, body []byte, ask func(context.Context, kvpilotv1.RoutingServiceClient) (Out, error)) (out Out, isPassed bool, err error) {
	p := o.deciderFor(ctx, model, body)
	if p == nil {
		return out, false, nil
	}
	ctx, cancel := context.WithTimeout(o.onward(ctx), reportPatience)
	defer cancel()
	out, err = ask(ctx, p.Routing)
	if err = forward.Error(err); err != nil && forward.IsUnreachable(err) {
		return out, false, nil
	}
	return out, true, err
}
