package zmtp

var (
	ErrSilent     = errSilent
	ErrTooLarge   = errTooLarge
	ErrProtocol   = errProtocol
	Handshake     = shakeHands
	SplitEndpoint = splitEndpoint
)

func (c *Conn) Unsubscribe(topic string) error { return c.subscription(0, "CANCEL", topic) }

func (p *Publisher) Dropped() uint64 { return p.pub.dropped.Load() }
