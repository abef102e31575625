package upstream

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// maxHeaders bounds the number of headers in an answer.
const maxHeaders = 256

// maxInterim bounds the interim (1xx) answers before the real one.
const maxInterim = 8

// readHead reads up to the end of the head, and settles how the body is framed.
func (a *leanAnswer) readHead(method string) *exchangeError {
	a.buf = getBuffer(smallBuffer)
	for range maxInterim {
		head, err := a.takeHead()
		if err != nil {
			return err
		}
		parsed, bad := parseHead(head)
		if bad != nil {
			return &exchangeError{phase: PhaseHead, cause: bad}
		}
		if parsed.status >= 200 {
			return a.settle(method, &parsed)
		}
		if parsed.status == http.StatusSwitchingProtocols {
			break
		}
	}
	return &exchangeError{phase: PhaseHead, cause: malformed("unexpected interim answer")}
}

// takeHead reads a head, and returns it with its last line break but without the empty line.
// It is valid until the next read.
func (a *leanAnswer) takeHead() ([]byte, *exchangeError) {
	searched := a.r
	for {
		if i := bytes.Index(a.buf.b[searched:a.w], []byte("\r\n\r\n")); i >= 0 {
			head := a.buf.b[a.r : searched+i+2]
			a.r = searched + i + 4
			return head, nil
		}
		searched = max(a.r, a.w-3)
		if a.w == len(a.buf.b) {
			if a.w-a.r >= a.cfg.MaxHeaderBytes {
				return nil, &exchangeError{phase: PhaseHead, cause: malformed("head too large")}
			}
			searched -= a.r
			a.grow()
		}
		n, err := a.conn.stream.Read(a.buf.b[a.w:])
		a.w += n
		if n == 0 && err != nil {
			unanswered := a.w == a.r && !isTimeout(err)
			if err == io.EOF { //nolint:errorlint // the plain io.EOF is the end; a wrapped one is an answer that was cut off
				err = io.ErrUnexpectedEOF
			}
			return nil, &exchangeError{phase: PhaseHead, cause: err, unanswered: unanswered}
		}
	}
}

// grow makes room for more of a head that fills the buffer.
func (a *leanAnswer) grow() {
	bigger := getBuffer(largeBuffer)
	if a.w-a.r > len(bigger.b)/2 { // beyond pooled sizes
		putBuffer(bigger)
		bigger = &buffer{make([]byte, 2*(a.w-a.r))}
	}
	a.w = copy(bigger.b, a.buf.b[a.r:a.w])
	a.r = 0
	putBuffer(a.buf)
	a.buf = bigger
}

// settle takes over what the head says.
func (a *leanAnswer) settle(method string, h *head) *exchangeError {
	a.resp = Response{Status: h.status, Header: h.header, ContentLength: -1, body: a}
	a.broken = h.close
	noBody := method == http.MethodHead || h.status == http.StatusNoContent || h.status == http.StatusNotModified
	switch {
	case noBody:
		a.frame = framing{kind: framingNone}
		a.resp.ContentLength = 0
	case h.chunked:
		a.frame = framing{kind: framingChunked}
	case h.length >= 0:
		a.frame = framing{kind: framingLength, left: uint64(h.length)}
		a.resp.ContentLength = h.length
	default:
		a.frame = framing{kind: framingClose}
		a.broken = true
	}
	a.conn.limit(a.cfg.StallTimeout)
	if a.frame.over() {
		a.finish(a.r < a.w)
	}
	return nil
}

// head is what the head of an answer says.
type head struct {
	status  int
	header  http.Header
	length  int64 // of the body, -1 when not given
	chunked bool
	close   bool
}

func malformed(what string) error { return fmt.Errorf("%w: %s", errMalformed, what) }

// parseHead reads a head. It is strict: whatever two readers could take for different things
// is refused, because the connection may carry another client's answer next.
func parseHead(b []byte) (head, error) {
	text := string(b)
	line, rest, _ := strings.Cut(text, "\r\n")
	h := head{length: -1}
	oldVersion, err := h.statusLine(line)
	if err != nil {
		return h, err
	}
	h.close = oldVersion
	h.header = make(http.Header, strings.Count(rest, "\r\n"))
	values := make([]string, 0, strings.Count(rest, "\r\n"))
	for count := 0; rest != ""; count++ {
		if count == maxHeaders {
			return h, malformed("too many headers")
		}
		line, rest, _ = strings.Cut(rest, "\r\n")
		name, value, found := strings.Cut(line, ":")
		if !found || !validName(name) {
			return h, malformed("invalid header name")
		}
		value = strings.Trim(value, " \t")
		if !validValue(value) {
			return h, malformed("invalid header value")
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if err := h.framing(name, value); err != nil {
			return h, err
		}
		if withheldFromClient(name) {
			continue
		}
		if have, ok := h.header[name]; ok {
			h.header[name] = append(have, value)
			continue
		}
		values = append(values, value)
		h.header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	if h.chunked && h.length >= 0 {
		return h, malformed("both Content-Length and Transfer-Encoding")
	}
	if h.chunked && oldVersion {
		return h, malformed("Transfer-Encoding in HTTP/1.0")
	}
	return h, nil
}

// statusLine reads "HTTP/1.1 200 OK".
func (h *head) statusLine(line string) (oldVersion bool, err error) {
	version, rest, _ := strings.Cut(line, " ")
	if version != "HTTP/1.1" && version != "HTTP/1.0" {
		return false, malformed("invalid status line")
	}
	code, reason, _ := strings.Cut(rest, " ")
	if len(code) != 3 || !allDigits(code) || code[0] == '0' || !validValue(reason) {
		return false, malformed("invalid status line")
	}
	h.status, _ = strconv.Atoi(code) // three digits
	return version == "HTTP/1.0", nil
}

// framing takes note of the headers that say where the answer ends.
func (h *head) framing(name, value string) error {
	switch name {
	case "Content-Length":
		if !allDigits(value) || len(value) > 18 {
			return malformed("invalid Content-Length")
		}
		n, _ := strconv.ParseInt(value, 10, 64) // at most 18 digits
		if h.length >= 0 && h.length != n {
			return malformed("two Content-Lengths")
		}
		h.length = n
	case "Transfer-Encoding":
		if h.chunked || !strings.EqualFold(value, "chunked") {
			return malformed("unknown Transfer-Encoding")
		}
		h.chunked = true
	case "Connection":
		if nominated([]string{value}, "close") {
			h.close = true
		}
	}
	return nil
}

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i]-'0' > 9 {
			return false
		}
	}
	return s != ""
}
