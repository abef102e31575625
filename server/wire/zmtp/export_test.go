package zmtp

var (
	ErrSilent     = errSilent
	ErrTooLarge   = errTooLarge
	ErrProtocol   = errProtocol
	Handshake     = shakeHands
	SplitEndpoint = splitEndpoint
)

func (c *Conn) Unsubscribe(topic string) error { return c.subscription(0, "CANCEL", topic) }
