package tunnel

import (
	"encoding/binary"
)

// closing looks for the message that closes a WebSocket (RFC 6455, section 5.2) among the bytes that pass, wherever the pieces
// were cut. On other protocols its result has no meaning; the bytes pass either way.
type closing struct {
	seen bool

	head [14]byte // of the frame with an incomplete head
	have int
	skip uint64 // bytes to come of the frame before it
}

// opClose is the opcode of the message.
const opClose = 8

// feed reads the next piece.
func (c *closing) feed(b []byte) {
	for len(b) > 0 && !c.seen {
		if c.skip > 0 {
			n := min(c.skip, uint64(len(b)))
			c.skip -= n
			b = b[n:]
			continue
		}
		c.head[c.have] = b[0]
		c.have++
		b = b[1:]
		if size, whole := c.size(); whole {
			c.seen = c.head[0]&0x0f == opClose
			c.have, c.skip = 0, size
		}
	}
}

// size is the length of the frame's payload, once its head is whole.
func (c *closing) size() (size uint64, whole bool) {
	if c.have < 2 {
		return 0, false
	}
	more := 0
	switch size = uint64(c.head[1] & 0x7f); size {
	case 126:
		more = 2
	case 127:
		more = 8
	}
	mask := 0
	if c.head[1]&0x80 != 0 {
		mask = 4
	}
	if c.have < 2+more+mask {
		return 0, false
	}
	switch more {
	case 2:
		size = uint64(binary.BigEndian.Uint16(c.head[2:]))
	case 8:
		size = binary.BigEndian.Uint64(c.head[2:])
	}
	return size, true
}
