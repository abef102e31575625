package zmtp

import "errors"

var (
	// errSilent is returned by Recv when the peer answered neither data nor a heartbeat in time.
	errSilent = errors.New("peer is silent")
	// errTooLarge is returned by Recv when a message exceeds Params.MaxMessage or has too many frames.
	errTooLarge = errors.New("message is too large")
	// errProtocol is wrapped by every error that is a peer's ZMTP protocol violation.
	errProtocol = errors.New("ZMTP protocol violation")
)
