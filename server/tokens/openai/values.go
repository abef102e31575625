package openai

import (
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// string reads a string into dst; any other value is read and leaves dst empty.
func (r *reader) string(dst *string) bool {
	*dst = ""
	if r.s.Space() != '"' {
		return r.s.Skip()
	}
	t, ok := r.s.Text()
	if ok {
		*dst = t.Copied()
	}
	return ok
}

// object reads an object member by member; any other value is skipped. visit reads the value.
func (r *reader) object(visit func(key []byte) bool) bool {
	if r.s.Space() != '{' {
		return r.s.Skip()
	}
	return r.s.Members(func(key []byte, _ int) bool { return visit(key) })
}

// boolean reads a flag as pydantic does: true, 1, "true", "yes", "on", ... in any case.
func (r *reader) boolean(dst *bool) bool {
	start := r.s.Pos
	if !r.s.Skip() {
		return false
	}
	switch strings.ToLower(strings.Trim(string(clip(r.s.Data[start:r.s.Pos])), `"`)) {
	case "true", "1", "1.0", "t", "y", "yes", "on":
		*dst = true
	default:
		*dst = false
	}
	return true
}

// integer reads an integer as pydantic does: 5, 5.0, "5". Anything else is zero.
func (r *reader) integer(dst *int) bool {
	start := r.s.Pos
	if !r.s.Skip() {
		return false
	}
	*dst = wholeNumber(string(clip(r.s.Data[start:r.s.Pos])))
	return true
}

// positive is integer for values of which only positive ones mean anything.
func (r *reader) positive(dst *int) bool {
	ok := r.integer(dst)
	*dst = max(*dst, 0)
	return ok
}

// clip bounds the bytes of a value that stands for a number or a flag.
func clip(raw []byte) []byte { return raw[:min(len(raw), 32)] }

func wholeNumber(raw string) int {
	raw = strings.TrimSpace(strings.Trim(raw, `"`))
	if n, err := strconv.ParseInt(raw, 10, 32); err == nil {
		return int(n)
	}
	f, err := strconv.ParseFloat(raw, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > math.MaxInt32 {
		return 0
	}
	return int(f)
}

// priorityHeader reads X-Vllm-Priority, which wins over the body's priority.
func priorityHeader(h http.Header) (int, bool) {
	for key, values := range h {
		if len(values) > 0 && sameHeader(key, "x-vllm-priority") {
			n, err := strconv.ParseInt(strings.TrimSpace(values[0]), 10, 32)
			return int(n), err == nil
		}
	}
	return 0, false
}

// userSession is the session in the user that Claude Code sends: user_HASH_account_UUID_session_UUID. Other users have none.
func userSession(user string) string {
	if !strings.HasPrefix(user, "user_") {
		return ""
	}
	_, session, _ := strings.Cut(user, "_session_")
	return session
}

// metadataUser reads metadata.user_id, where Anthropic's format has the user.
func metadataUser(raw []byte) string {
	if len(raw) == 0 || raw[0] != '{' {
		return ""
	}
	r := reader{s: rawjson.Scanner{Data: raw}, req: &Request{}}
	user := ""
	r.object(func(key []byte) bool {
		if string(key) == "user_id" {
			return r.string(&user)
		}
		return r.s.Skip()
	})
	return user
}

// memberName gives the well-known names without an allocation.
func memberName(name []byte) string {
	switch string(name) {
	case "model":
		return "model"
	case "messages":
		return "messages"
	case "prompt":
		return "prompt"
	case "stream":
		return "stream"
	case "stream_options":
		return "stream_options"
	case "max_tokens":
		return "max_tokens"
	case "max_completion_tokens":
		return "max_completion_tokens"
	case "temperature":
		return "temperature"
	case "top_p":
		return "top_p"
	case "tools":
		return "tools"
	case "n":
		return "n"
	case "user":
		return "user"
	}
	return string(name)
}
