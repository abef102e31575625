package zmtp

import (
	"encoding/binary"
	"fmt"
)

// The bits of a frame's flag byte.
const (
	flagMore    = 1 << 0
	flagLong    = 1 << 1
	flagCommand = 1 << 2
)

const (
	maxFrames   = 64       // frames in one message
	maxCommand  = 64 << 10 // bytes in one command
	maxTopic    = 4 << 10  // bytes in one subscription
	maxTopics   = 1024     // subscriptions of one peer
	growStep    = 1 << 20  // memory is taken in steps of this size while a large frame arrives
	readBuffer  = 64 << 10
	writeBuffer = 64 << 10
)

// Message is a multipart message. Its frames point into memory that the next Recv into the
// same Message overwrites.
type Message struct {
	Frames [][]byte

	buf  []byte
	ends []int
}

// Size is the number of payload bytes in all frames.
func (m *Message) Size() int { return len(m.buf) }

// Cap is the memory that the message keeps for reuse.
func (m *Message) Cap() int { return cap(m.buf) }

func (m *Message) reset() {
	m.Frames = m.Frames[:0]
	m.buf = m.buf[:0]
	m.ends = m.ends[:0]
}

// seal cuts the frames out of the buffer, which does not move any more.
func (m *Message) seal() {
	start := 0
	for _, end := range m.ends {
		m.Frames = append(m.Frames, m.buf[start:end:end])
		start = end
	}
}

// AppendMessage appends the wire form of a multipart message to dst.
func AppendMessage(dst []byte, frames ...[]byte) []byte {
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		dst = appendFrame(dst, flags, f)
	}
	return dst
}

func appendFrame(dst []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		dst = append(dst, flags|flagLong)
		dst = binary.BigEndian.AppendUint64(dst, uint64(len(body)))
	} else {
		dst = append(dst, flags, byte(len(body)))
	}
	return append(dst, body...)
}

func appendCommand(dst []byte, name string, data []byte) []byte {
	size := 1 + len(name) + len(data)
	if size > 255 {
		dst = append(dst, flagCommand|flagLong)
		dst = binary.BigEndian.AppendUint64(dst, uint64(size))
	} else {
		dst = append(dst, flagCommand, byte(size))
	}
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	return append(dst, data...)
}

// splitCommand takes a command's body apart into its name and data.
func splitCommand(body []byte) (name string, data []byte, err error) {
	if len(body) == 0 || int(body[0]) > len(body)-1 || body[0] == 0 {
		return "", nil, fmt.Errorf("malformed command: %w", errProtocol)
	}
	n := int(body[0])
	return string(body[1 : 1+n]), body[1+n:], nil
}

func breach(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errProtocol)
}
