package sse

import "bytes"

// Usage is an engine's statement of a request's cost. A count it does not give is -1.
type Usage struct {
	PromptTokens     int
	CompletionTokens int
	// CachedTokens is the part of the prompt that came from the KV cache.
	CachedTokens int
}

// capture holds the object that began at a usage member. It is made when there is one to hold:
// most of a stream's life there is none.
type capture struct {
	buf   [captureSize]byte
	n     int
	depth int
	whole bool
}

// captureSize is more than twice of the size that engines send today; a longer object is given up.
const captureSize = 768

// complete reports whether a whole object is held.
func (c *capture) complete() bool { return c != nil && c.whole }

// emptied gives a capture that holds nothing.
func (c *capture) emptied() *capture {
	if c == nil {
		return &capture{}
	}
	c.n, c.depth, c.whole = 0, 0, false
	return c
}

// fill takes the object's next bytes, and says how many and whether it is over.
func (c *capture) fill(b []byte) (used int, over bool) {
	for i, x := range b {
		if c.n == len(c.buf) {
			return i, true
		}
		c.buf[c.n] = x
		c.n++
		switch x {
		case '{':
			c.depth++
		case '}':
			c.depth--
			if c.depth == 0 {
				c.whole = true
				return i + 1, true
			}
		}
	}
	return len(b), false
}

// read puts the counts that the object gives into u.
func (c *capture) read(u *Usage) {
	if !c.complete() {
		return
	}
	b := c.buf[:c.n]
	count(b, &u.PromptTokens, `"prompt_tokens"`, `"input_tokens"`)
	count(b, &u.CompletionTokens, `"completion_tokens"`, `"output_tokens"`)
	count(b, &u.CachedTokens, `"cached_tokens"`, `"cache_read_input_tokens"`)
}

// parts is a prompt as Anthropic's format counts it: the tokens neither read from the cache nor written into it,
// and those two. A missing count is -1.
type parts struct{ rest, read, created int }

// readParts puts the parts that the object gives into p.
func (c *capture) readParts(p *parts) {
	if !c.complete() {
		return
	}
	b := c.buf[:c.n]
	count(b, &p.rest, `"input_tokens"`)
	count(b, &p.read, `"cache_read_input_tokens"`)
	count(b, &p.created, `"cache_creation_input_tokens"`)
}

// whole is the length of the prompt, -1 when it is not known.
func (p parts) whole() int {
	if p.rest < 0 {
		return -1
	}
	return p.rest + max(p.read, 0) + max(p.created, 0)
}

// count reads the first of the named members that is a number.
func count(b []byte, dst *int, names ...string) {
	for _, name := range names {
		i := bytes.Index(b, []byte(name))
		if i < 0 {
			continue
		}
		rest := bytes.TrimLeft(b[i+len(name):], " \t\r\n")
		if len(rest) == 0 || rest[0] != ':' {
			continue
		}
		rest = bytes.TrimLeft(rest[1:], " \t\r\n")
		n, digits := 0, 0
		for digits < len(rest) && rest[digits]-'0' <= 9 && digits < 12 {
			n = n*10 + int(rest[digits]-'0')
			digits++
		}
		if digits > 0 {
			*dst = n
			return
		}
	}
}
