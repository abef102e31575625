// Package websocket is as much of RFC 6455 as a simulated replica needs: the answer to a handshake, and an echo of
// every frame. Its functions are pure but for the connections that they are given.
package websocket

import (
	"bufio"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
)

// AcceptKey answers a handshake's key (RFC 6455, section 4.2.2).
func AcceptKey(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// The opcodes of RFC 6455.
const (
	opText  = 1
	opClose = 8
	opPing  = 9
	opPong  = 10
)

// maxFrame bounds a client's frame.
const maxFrame = 16 << 20

// Echo sends frames back as they come, until the client closes.
func Echo(to io.Writer, from *bufio.Reader) error {
	var out []byte
	for {
		final, opcode, payload, err := readFrame(from)
		if err != nil {
			return err
		}
		switch opcode {
		case opPong:
			continue
		case opPing:
			opcode = opPong
		}
		out = appendFrame(out[:0], final, opcode, payload)
		if _, err := to.Write(out); err != nil {
			return err
		}
		if opcode == opClose {
			return nil
		}
	}
}

// readFrame reads one frame of a client, which masks its bytes.
func readFrame(from *bufio.Reader) (final bool, opcode byte, payload []byte, err error) {
	var head [14]byte
	if _, err := io.ReadFull(from, head[:2]); err != nil {
		return false, 0, nil, err
	}
	size := uint64(head[1] & 0x7f)
	switch size {
	case 126:
		_, err = io.ReadFull(from, head[2:4])
		size = uint64(binary.BigEndian.Uint16(head[2:]))
	case 127:
		_, err = io.ReadFull(from, head[2:10])
		size = binary.BigEndian.Uint64(head[2:])
	}
	switch {
	case err != nil:
		return false, 0, nil, err
	case size > maxFrame || head[1]&0x80 == 0:
		return false, 0, nil, errFrame
	}
	mask := head[10:14]
	if _, err := io.ReadFull(from, mask); err != nil {
		return false, 0, nil, err
	}
	payload = make([]byte, size)
	if _, err := io.ReadFull(from, payload); err != nil {
		return false, 0, nil, err
	}
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	return head[0]&0x80 != 0, head[0] & 0x0f, payload, nil
}

var errFrame = errors.New("a frame without a mask, or too large")

// appendFrame appends a frame as servers send it.
func appendFrame(b []byte, final bool, opcode byte, payload []byte) []byte {
	first := opcode
	if final {
		first |= 0x80
	}
	switch n := len(payload); {
	case n < 126:
		b = append(b, first, byte(n))
	case n <= 0xffff:
		b = binary.BigEndian.AppendUint16(append(b, first, 126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, first, 127), uint64(n))
	}
	return append(b, payload...)
}

// AppendText appends a text message as servers send it.
func AppendText(b, text []byte) []byte { return appendFrame(b, true, opText, text) }
