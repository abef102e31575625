package http1

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// maxHeaders bounds the number of headers in a response.
const maxHeaders = 256

// ErrMalformed is the root of every error about bytes that are not valid HTTP.
var ErrMalformed = errors.New("malformed HTTP response")

// Malformed makes an error about bytes that are not valid HTTP.
func Malformed(what string) error { return fmt.Errorf("%w: %s", ErrMalformed, what) }

// Head is the parsed head of a response.
type Head struct {
	Status int
	Header http.Header
	// Length is the Content-Length, -1 when there is none.
	Length  int64
	Chunked bool
	// Close reports that the sender closes the connection after this response.
	Close bool
}

// ParseHead reads a head with its last line break but without the empty line. It is strict: a head that two parsers could read in two
// ways is rejected, because the connection may carry another client's response next. Headers that drop names, in canonical form, are left
// out.
func ParseHead(b []byte, drop func(name string) bool) (Head, error) {
	text := string(b)
	line, rest, _ := strings.Cut(text, "\r\n")
	h := Head{Length: -1}
	oldVersion, err := h.statusLine(line)
	if err != nil {
		return h, err
	}
	h.Close = oldVersion
	h.Header = make(http.Header, strings.Count(rest, "\r\n"))
	values := make([]string, 0, strings.Count(rest, "\r\n"))
	for count := 0; rest != ""; count++ {
		if count == maxHeaders {
			return h, Malformed("too many headers")
		}
		line, rest, _ = strings.Cut(rest, "\r\n")
		name, value, found := strings.Cut(line, ":")
		if !found || !ValidName(name) {
			return h, Malformed("invalid header name")
		}
		value = strings.Trim(value, " \t")
		if !ValidValue(value) {
			return h, Malformed("invalid header value")
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if err := h.framing(name, value); err != nil {
			return h, err
		}
		if drop(name) {
			continue
		}
		if have, ok := h.Header[name]; ok {
			h.Header[name] = append(have, value)
			continue
		}
		values = append(values, value)
		h.Header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	if h.Chunked && h.Length >= 0 {
		return h, Malformed("both Content-Length and Transfer-Encoding")
	}
	if h.Chunked && oldVersion {
		return h, Malformed("Transfer-Encoding in HTTP/1.0")
	}
	return h, nil
}

// statusLine reads "HTTP/1.1 200 OK".
func (h *Head) statusLine(line string) (oldVersion bool, err error) {
	version, rest, _ := strings.Cut(line, " ")
	if version != "HTTP/1.1" && version != "HTTP/1.0" {
		return false, Malformed("invalid status line")
	}
	code, reason, _ := strings.Cut(rest, " ")
	if len(code) != 3 || !allDigits(code) || code[0] == '0' || !ValidValue(reason) {
		return false, Malformed("invalid status line")
	}
	h.Status, _ = strconv.Atoi(code) // three digits
	return version == "HTTP/1.0", nil
}

// framing records the headers that define where the response ends.
func (h *Head) framing(name, value string) error {
	switch name {
	case "Content-Length":
		if !allDigits(value) || len(value) > 18 {
			return Malformed("invalid Content-Length")
		}
		n, _ := strconv.ParseInt(value, 10, 64) // at most 18 digits
		if h.Length >= 0 && h.Length != n {
			return Malformed("two Content-Lengths")
		}
		h.Length = n
	case "Transfer-Encoding":
		if h.Chunked || !strings.EqualFold(value, "chunked") {
			return Malformed("unknown Transfer-Encoding")
		}
		h.Chunked = true
	case "Connection":
		if Nominated([]string{value}, "close") {
			h.Close = true
		}
	}
	return nil
}
