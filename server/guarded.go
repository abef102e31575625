package server

import (
	"net"
	"net/http"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
	"github.com/kvpilot/kvpilot/server/observe/telemetry"
)

// messageFrame is the room of a gRPC message in addition to the largest body.
const messageFrame = 64 << 10

// newGuard bounds the resources of gRPC callers.
func newGuard(c config.Config, t *telemetry.Telemetry, p *parts, api *grpcapi.API, held *ledger.Ledger) *guard.Guard {
	return guard.New(guard.Limits{
		Message: int(c.Gateway.MaxBodyBytes) + messageFrame,
		Streams: uint32(c.Listen.MaxStreams), HeaderBytes: uint32(c.Listen.MaxHeaderBytes),
		Handshake: c.Listen.ReadHeaderTimeout, Idle: c.Listen.IdleTimeout,
		Receive: c.Gateway.BodyTimeout, Stall: c.Gateway.StallTimeout,
	}, guard.Params{
		Ledger: held, Senders: api, Messages: grpcapi.Messages{},
		Scope: p.part("guard"),
	})
}

// guardAdmin keeps pages of other origins from changing anything through the admin listener, and ends
// responses that are not read.
func guardAdmin(stall func() time.Duration, next http.Handler) http.Handler {
	return guard.StallTimeout(stall, http.NewCrossOriginProtection().Handler(next))
}

// metricsMemory is the memory for an answer of /metrics while it is made and read.
const metricsMemory = 2 << 20

// guardListener does the work that depends on where a listener is open: on the loopback requests must be for
// this machine; on other addresses a router without keys is open to all, which is worth a warning.
func (s *Server) guardListener(setting string, at net.Addr) {
	if guard.Loopback(at) {
		switch setting {
		case "listen.http":
			s.surfaces.http.Handler = guard.CheckHost(s.config.Listen.Hosts, s.surfaces.wrongHost, s.surfaces.http.Handler)
		case "listen.admin":
			s.surfaces.admin.Handler = guard.CheckHost(s.config.Listen.Hosts, s.surfaces.wrongHost, s.surfaces.admin.Handler)
		}
		return
	}
	if s.surfaces.callers.Open() {
		s.parts.scope.Log().Warn("any client that can reach this address may use it: no API keys are set (api.keys_file)", "setting", setting, "address", at.String())
	}
}

// Connections of a listener when the operator names no bound: a quarter of the files that the process
// may open for each one, so that as many are left for replicas.
const (
	listenerShare      = 4
	fewestConnections  = 64
	mostConnections    = 64 << 10
	unknownConnections = 4096
)

// The memory of an idle connection: buffers, goroutines and their stacks.
const (
	httpConnection  = 20 << 10
	grpcConnection  = 96 << 10
	fleetConnection = 96 << 10
)

// placesShare is the part of the memory that streams and connections may take, unknownPlaces their part when the memory has no limit.
const (
	placesShare   = 6
	unknownPlaces = 1 << 30
)

// newLedger makes the count of the resources that the process holds for its callers. All listeners together take half of the files that
// the process may open; the others are for replicas, for other routers and for the router's own.
func (s *Server) newLedger(c config.Config, t *telemetry.Telemetry) *ledger.Ledger {
	bounds := ledger.Config{Bytes: c.Gateway.Bodies(), Places: unknownPlaces}
	if s.params.Memory.Bytes > 0 {
		bounds.Places = s.params.Memory.Bytes / placesShare
	}
	if files, ok := MaxFiles(); ok {
		bounds.Files = int(min(max(files/2, fewestConnections), 4*mostConnections))
	}
	return ledger.New(bounds, t.Meters())
}

// counted gives a listener's connections to the ledger.
func (s *Server) counted(setting string, l net.Listener) net.Listener {
	cost := int64(httpConnection)
	if setting == "listen.grpc" {
		cost = grpcConnection
	}
	return s.ledger.Listener(l, ledger.ListenerConfig{Max: maxConnections(s.config.Listen), Cost: cost})
}

// Connections of other routers, and of strangers that have not shown a certificate of the fleet yet: the former stay.
const (
	mostPeerConnections = 1024
	peerShare           = 8
)

// countedPeers gives the connections to the fleet's address to the ledger.
func (s *Server) countedPeers(l net.Listener) net.Listener {
	most := mostPeerConnections
	if files, ok := MaxFiles(); ok {
		most = int(min(uint64(most), max(files/peerShare, fewestConnections)))
	}
	return s.ledger.Listener(l, ledger.ListenerConfig{Max: most, Cost: fleetConnection, Lasting: true})
}

func maxConnections(l config.Listen) int {
	if l.MaxConnections > 0 {
		return l.MaxConnections
	}
	files, ok := MaxFiles()
	if !ok {
		return unknownConnections
	}
	return int(min(max(files/listenerShare, fewestConnections), mostConnections))
}
