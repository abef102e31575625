package forward

import (
	"context"
	"log/slog"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/caller"
)

// Announcer has the other routers repeat the steps of a rule at this router. Run sends; without it nothing is sent. A nil Announcer announces nothing.
type Announcer struct {
	fleet *Fleet
	log   *slog.Logger
	steps chan *kvpilotv1.SetSplitSideRequest
}

// waiting is how many announcements wait at most; further ones are dropped.
const waiting = 64

// NewAnnouncer makes an Announcer to the other routers of f. log may be nil.
func NewAnnouncer(f *Fleet, log *slog.Logger) *Announcer {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Announcer{fleet: f, log: log, steps: make(chan *kvpilotv1.SetSplitSideRequest, waiting)}
}

// SteppedBack has the other routers send the side of a model's split back. It does not block.
func (a *Announcer) SteppedBack(model, side string) {
	if a == nil {
		return
	}
	select {
	case a.steps <- &kvpilotv1.SetSplitSideRequest{Model: model, Side: side, Back: true}:
	default:
		a.log.Warn("the other routers do not learn that a side of a split stepped back: too many announcements wait", "model", model, "side", side)
	}
}

// Run sends the announcements until ctx ends. A router that does not answer is not asked again: it compares the sides itself.
func (a *Announcer) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case step := <-a.steps:
			a.send(ctx, step)
		}
	}
}

func (a *Announcer) send(ctx context.Context, step *kvpilotv1.SetSplitSideRequest) {
	self := a.fleet.Self()
	by := &caller.Caller{Name: self.Name, Roles: caller.Admin}
	peers, silent := a.fleet.Others()
	_, missing := Gather(Send(ctx, by, "the rule of "+self.Name, nil), peers, func(ctx context.Context, p *Peer) (*kvpilotv1.SetSplitSideResponse, error) {
		return p.Routing.SetSplitSide(ctx, step)
	})
	if missing = append(silent, missing...); len(missing) > 0 {
		a.log.Warn("routers do not know that a side of a split stepped back", "model", step.GetModel(), "side", step.GetSide(), "routers", missing)
	}
}
