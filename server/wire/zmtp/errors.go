package zmtp

import "errors"

var (
	// ErrSilent is returned by Recv when the peer answered neither data nor a heartbeat in time.
	ErrSilent = errors.New("peer is silent")
	// ErrTooLarge is returned by Recv when a message exceeds Params.MaxMessage or has too many frames.
	ErrTooLarge = errors.New("message is too large")
	// ErrProtocol is wrapped by every error that is a peer's ZMTP protocol violation.
	ErrProtocol = errors.New("ZMTP protocol violation")
)
