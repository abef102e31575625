package grpcapi

import (
	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// invalid is the error of a header or a field. The message names it too: gRPC clients print the message alone.
func invalid(param, message string) error {
	return apierror.New(apierror.InvalidBody, param+": "+message, nil, apierror.WithParam(param))
}

func reservationNotFound() error {
	return apierror.New(apierror.ReservationNotFound, "there is no such reservation", nil, apierror.WithParam("reservation_id"))
}

// errNoUpgrade is the error of a call of Realtime without a connection to make a WebSocket of.
func errNoUpgrade() error {
	return apierror.New(apierror.NotSupported, "this route is a WebSocket: open it by an upgrade of an HTTP/1.1 connection (GET /v1/realtime with Connection: Upgrade, Upgrade: websocket)", nil, apierror.WithUpgrade())
}

func shuttingDown() *apierror.Error {
	return apierror.New(apierror.ShuttingDown, "the router is stopping", nil)
}
