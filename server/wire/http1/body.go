package http1

import (
	"net/http"
)

// Body separates the bytes of a body from their framing. It reads nothing itself.
type Body struct {
	kind  framing
	left  uint64 // of the body (framingLength) or of the chunk
	state chunkState
	seen  int // digits of a size, or bytes of an extension or of the trailers
}

type framing uint8

const (
	// framingNone: no body.
	framingNone framing = iota
	// framingLength: as many bytes as Content-Length says.
	framingLength
	// framingChunked: chunks.
	framingChunked
	// framingClose: until the connection closes.
	framingClose
)

// chunkState is the next expected part of a chunked body.
type chunkState uint8

const (
	chunkSize chunkState = iota
	chunkExtension
	chunkSizeLF
	chunkData
	chunkDataCR
	chunkDataLF
	trailerStart
	trailerLine
	trailerLF
	trailerEnd
	chunksOver
)

const (
	// maxSizeDigits leaves a chunk's size far below the largest number.
	maxSizeDigits = 15
	// maxFrameExtra bounds extensions and trailers, of which kvpilot uses none.
	maxFrameExtra = 4 << 10
)

// BodyOf is the body of the response to a request with the method, as its head frames it.
func BodyOf(method string, h *Head) Body {
	switch {
	case method == http.MethodHead || h.Status == http.StatusNoContent || h.Status == http.StatusNotModified:
		return Body{kind: framingNone}
	case h.Chunked:
		return Body{kind: framingChunked}
	case h.Length >= 0:
		return Body{kind: framingLength, left: uint64(h.Length)}
	}
	return Body{kind: framingClose}
}

// Size is the number of bytes that are to come, -1 when it is not known.
func (f *Body) Size() int64 {
	switch f.kind {
	case framingNone, framingLength:
		return int64(f.left)
	case framingChunked, framingClose:
	}
	return -1
}

// UntilClose reports whether the body ends with its connection.
func (f *Body) UntilClose() bool { return f.kind == framingClose }

// Complete reports whether all of the body was decoded.
func (f *Body) Complete() bool {
	switch f.kind {
	case framingNone:
		return true
	case framingLength:
		return f.left == 0
	case framingChunked:
		return f.state == chunksOver
	case framingClose:
	}
	return false
}

// Decode moves the body's bytes within b to its start. It returns their number and how much
// of b was used, which is all of it unless the body ended.
func (f *Body) Decode(b []byte) (body, used int, err error) {
	switch f.kind {
	case framingNone:
		return 0, 0, nil
	case framingLength:
		n := int(min(uint64(len(b)), f.left))
		f.left -= uint64(n)
		return n, n, nil
	case framingClose:
		return len(b), len(b), nil
	case framingChunked:
	}
	for used < len(b) && f.state != chunksOver {
		if f.state == chunkData {
			n := int(min(uint64(len(b)-used), f.left))
			if body != used {
				copy(b[body:], b[used:used+n])
			}
			body, used, f.left = body+n, used+n, f.left-uint64(n)
			if f.left == 0 {
				f.state = chunkDataCR
			}
			continue
		}
		if !f.step(b[used]) {
			return body, used, Malformed("invalid chunk")
		}
		used++
	}
	return body, used, nil
}

// step takes one byte between the chunks' data.
func (f *Body) step(c byte) bool {
	switch f.state {
	case chunkSize:
		return f.stepSize(c)
	case chunkExtension:
		f.seen++
		if c == '\r' {
			f.state = chunkSizeLF
			return true
		}
		return f.seen <= maxFrameExtra && (c >= ' ' && c != 0x7f || c == '\t')
	case chunkSizeLF:
		f.seen, f.state = 0, chunkData
		if f.left == 0 {
			f.state = trailerStart
		}
		return c == '\n'
	case chunkDataCR:
		f.state = chunkDataLF
		return c == '\r'
	case chunkDataLF:
		f.state = chunkSize
		return c == '\n'
	case trailerStart:
		if c == '\r' {
			f.state = trailerEnd
			return true
		}
		f.state = trailerLine
		return tokenByte(c)
	case trailerLine:
		f.seen++
		if c == '\r' {
			f.state = trailerLF
			return true
		}
		return f.seen <= maxFrameExtra && (c >= ' ' && c != 0x7f || c == '\t')
	case trailerLF:
		f.state = trailerStart
		return c == '\n'
	case trailerEnd:
		f.state = chunksOver
		return c == '\n'
	case chunkData, chunksOver:
	}
	return false
}

// stepSize takes one byte of a chunk's size.
func (f *Body) stepSize(c byte) bool {
	if v := hexDigit(c); v >= 0 {
		if f.seen == 0 {
			f.left = 0
		}
		f.seen++
		f.left = f.left<<4 | uint64(v)
		return f.seen <= maxSizeDigits
	}
	if f.seen == 0 {
		return false
	}
	switch c {
	case '\r':
		f.state = chunkSizeLF
	case ';':
		f.seen, f.state = 0, chunkExtension
	default:
		return false
	}
	return true
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
