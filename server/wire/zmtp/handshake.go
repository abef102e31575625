package zmtp

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"time"
)

// SocketType is a ZeroMQ socket type as the handshake names it.
type SocketType string

// The socket types that this package plays or meets.
const (
	PUB    SocketType = "PUB"
	XPUB   SocketType = "XPUB"
	SUB    SocketType = "SUB"
	XSUB   SocketType = "XSUB"
	DEALER SocketType = "DEALER"
	ROUTER SocketType = "ROUTER"
	REQ    SocketType = "REQ"
	REP    SocketType = "REP"
)

// peersOf lists the types that may be at the other end.
func peersOf(t SocketType) []SocketType {
	switch t {
	case PUB, XPUB:
		return []SocketType{SUB, XSUB}
	case SUB, XSUB:
		return []SocketType{PUB, XPUB}
	case DEALER:
		return []SocketType{ROUTER, DEALER, REP}
	case ROUTER:
		return []SocketType{DEALER, REQ, ROUTER}
	case REQ:
		return []SocketType{ROUTER, REP}
	case REP:
		return []SocketType{DEALER, REQ}
	}
	return nil
}

const (
	greetingSize = 64
	ourMinor     = 1
)

// Params shape one connection. The zero value of each duration and size takes the default.
type Params struct {
	// Type is our own socket type. Required.
	Type SocketType
	// MaxMessage bounds the bytes of one message; 0 means 32 MiB.
	MaxMessage int
	// HandshakeTimeout bounds dialling and greeting together; 0 means 5 s.
	HandshakeTimeout time.Duration
	// Heartbeat is how long a peer may be quiet before it is asked with PING; 0 asks nothing. A peer that
	// speaks ZMTP 3.0, which has no PING, is asked nothing: TCP's own keep-alive finds dead hosts.
	Heartbeat time.Duration
	// Silence is how long a peer may be quiet before Recv returns errSilent; 0 means three
	// heartbeats, and less than one and a half is taken as that. It has no effect without Heartbeat.
	Silence time.Duration
	// WriteTimeout bounds each write; 0 means 10 s.
	WriteTimeout time.Duration
}

func (p Params) withDefaults() Params {
	if p.MaxMessage <= 0 {
		p.MaxMessage = 32 << 20
	}
	if p.HandshakeTimeout <= 0 {
		p.HandshakeTimeout = 5 * time.Second
	}
	if p.Silence <= 0 {
		p.Silence = 3 * p.Heartbeat
	}
	p.Silence = max(p.Silence, p.Heartbeat+p.Heartbeat/2)
	if p.WriteTimeout <= 0 {
		p.WriteTimeout = 10 * time.Second
	}
	return p
}

// shakeHands greets the peer on nc and returns the connection ready for messages. It owns nc
// from the call on and closes it when it fails.
func shakeHands(ctx context.Context, nc net.Conn, p Params) (*Conn, error) {
	p = p.withDefaults()
	stop := context.AfterFunc(ctx, func() { hangUp(nc) })
	c, err := handshake(nc, p)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		hangUp(nc)
		return nil, fmt.Errorf("handshake with %s: %w", nc.RemoteAddr(), err)
	}
	return c, nil
}

func handshake(nc net.Conn, p Params) (*Conn, error) {
	if peersOf(p.Type) == nil {
		return nil, fmt.Errorf("unknown socket type %q", p.Type)
	}
	if err := nc.SetDeadline(time.Now().Add(p.HandshakeTimeout)); err != nil {
		return nil, err
	}
	c := &Conn{nc: nc, params: p, in: make([]byte, readBuffer)}
	// Greeting and READY may go out together: NULL needs nothing from the peer first.
	hello := appendCommand(greeting(), "READY", ready(p.Type))
	if _, err := nc.Write(hello); err != nil {
		return nil, err
	}
	if err := c.readGreeting(); err != nil {
		return nil, err
	}
	if err := c.readReady(); err != nil {
		return nil, err
	}
	_ = nc.SetDeadline(time.Time{}) // fails only on a closed connection; Recv still delivers its last bytes
	c.heard = time.Now()
	return c, nil
}

func greeting() []byte {
	g := make([]byte, greetingSize, 128)
	g[0], g[8], g[9] = 0xFF, 1, 0x7F
	g[10], g[11] = 3, ourMinor
	copy(g[12:32], "NULL")
	return g
}

func (c *Conn) readGreeting() error {
	var g [greetingSize]byte
	if err := c.readFull(g[:]); err != nil {
		return err
	}
	if g[0] != 0xFF || g[9]&1 == 0 {
		return breach("not a ZMTP greeting")
	}
	if g[10] < 3 {
		return breach("peer speaks ZMTP %d.%d, 3.0 or later is needed", g[10], g[11])
	}
	if mechanism := bytes.TrimRight(g[12:32], "\x00"); string(mechanism) != "NULL" {
		return breach("peer requires security mechanism %q, only NULL is supported", mechanism)
	}
	c.minor = min(g[11], ourMinor)
	if g[10] > 3 {
		c.minor = ourMinor
	}
	return nil
}

func (c *Conn) readReady() error {
	flags, size, err := c.frameHeader()
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 || size > maxCommand {
		return breach("first frame is not a READY command")
	}
	body := make([]byte, size)
	if err := c.readFull(body); err != nil {
		return err
	}
	name, data, err := splitCommand(body)
	if err != nil {
		return err
	}
	switch name {
	case "READY":
	case "ERROR":
		return breach("peer refuses: %q", errorReason(data))
	default:
		return breach("unexpected command %q", name)
	}
	c.peer, err = socketType(data)
	if err != nil {
		return err
	}
	if !slices.Contains(peersOf(c.params.Type), c.peer) {
		reason := fmt.Sprintf("a %s socket cannot connect to a %s socket", c.params.Type, c.peer)
		_, _ = c.nc.Write(appendCommand(nil, "ERROR", append([]byte{byte(len(reason))}, reason...))) // a courtesy; the connection closes
		return breach("%s", reason)
	}
	return nil
}

// ready is the body of our READY command.
func ready(t SocketType) []byte {
	b := appendProperty(nil, "Socket-Type", string(t))
	if t == DEALER || t == ROUTER || t == REQ {
		b = appendProperty(b, "Identity", "")
	}
	return b
}

func appendProperty(dst []byte, name, value string) []byte {
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(value)))
	return append(dst, value...)
}

// socketType finds the Socket-Type property in READY's metadata.
func socketType(meta []byte) (SocketType, error) {
	for len(meta) > 0 {
		n := int(meta[0])
		if len(meta) < 1+n+4 {
			return "", breach("malformed metadata")
		}
		name := meta[1 : 1+n]
		size := binary.BigEndian.Uint32(meta[1+n:])
		meta = meta[1+n+4:]
		if uint64(size) > uint64(len(meta)) {
			return "", breach("malformed metadata")
		}
		if bytes.EqualFold(name, []byte("Socket-Type")) {
			return SocketType(meta[:size]), nil
		}
		meta = meta[size:]
	}
	return "", breach("peer does not name its socket type")
}

func errorReason(data []byte) string {
	if len(data) == 0 || int(data[0]) > len(data)-1 {
		return ""
	}
	return string(data[1 : 1+int(data[0])])
}
