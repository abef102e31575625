package server

import (
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/grpcapi"
	"github.com/kvpilot/kvpilot/server/guard"
	"github.com/kvpilot/kvpilot/server/telemetry"
)

// messageFrame is what a gRPC message may have beside the largest body.
const messageFrame = 64 << 10

// newDoor bounds what callers of the gRPC door may hold.
func newDoor(c config.Config, t *telemetry.Telemetry, p *parts, api *grpcapi.API, budget *guard.Budget) (*guard.Door, error) {
	return guard.NewDoor(guard.Limits{
		Message: int(c.Gateway.MaxBodyBytes) + messageFrame,
		Streams: uint32(c.Listen.MaxStreams), HeaderBytes: uint32(c.Listen.MaxHeaderBytes), //nolint:gosec // Validate bounds them
		Handshake: c.Listen.ReadHeaderTimeout, Idle: c.Listen.IdleTimeout,
		Receive: c.Gateway.BodyTimeout, Stall: c.Gateway.StallTimeout,
	}, guard.Params{
		Budget: budget, Known: api.Known, Prompts: api.CarriesPrompt, Admit: api.Admit,
		Log: p.part("guard"), Meter: t.Meters(),
	})
}
