package sse

import "bytes"

// Lead skips the comments at the beginning of a stream, wherever the pieces were cut. Engines and proxies send comments to keep
// a connection open; they are no part of the answer. The zero value is ready.
type Lead struct {
	over   bool // the first line that is no comment has begun
	inside bool // the last piece ended inside a comment
}

// Skip returns the part of piece that follows the comments, empty when there is none.
func (l *Lead) Skip(piece []byte) []byte {
	if l.over {
		return piece
	}
	for len(piece) > 0 {
		switch c := piece[0]; {
		case l.inside:
			n := bytes.IndexAny(piece, "\r\n")
			if n < 0 {
				return nil
			}
			l.inside = false
			piece = piece[n:]
		case c == ':':
			l.inside = true
			piece = piece[1:]
		case c == '\n' || c == '\r':
			piece = piece[1:]
		default:
			l.over = true
			return piece
		}
	}
	return nil
}

// IsComment reports whether piece, which begins with a line, holds comments and blank lines only.
func IsComment(piece []byte) bool {
	if len(piece) == 0 || piece[0] != ':' {
		return false
	}
	var l Lead
	return len(l.Skip(piece)) == 0
}

// EndsEvent reports whether piece ends with a blank line, behind which another event or a comment may follow.
func EndsEvent(piece []byte) bool {
	return bytes.HasSuffix(piece, []byte("\n\n")) || bytes.HasSuffix(piece, []byte("\n\r\n"))
}

// lastEnd is the index behind the last blank line of b, 0 when it has none.
func lastEnd(b []byte) int {
	at := bytes.LastIndex(b, []byte("\n\n")) + len("\n\n")
	if at < len("\n\n") {
		at = 0
	}
	if i := bytes.LastIndex(b, []byte("\n\r\n")); i >= 0 {
		at = max(at, i+len("\n\r\n"))
	}
	return at
}
