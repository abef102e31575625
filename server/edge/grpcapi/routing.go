package grpcapi

import (
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// routing is RoutingService: it decides without answering.
type routing struct {
	kvpilotv1.UnsafeRoutingServiceServer
	*choices
	*tokens
	*reservations
	*records
	*loads
	policies
}
