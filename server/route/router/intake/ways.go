package intake

import (
	"slices"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// Way is how another replica could resume the answer, if it is streamed and the prompt is not too long.
func (rq *Request) Way() openai.Way {
	if rq.Settings.ResumeStreams == 0 || rq.Question != nil || !rq.Call.Route.Generates() || rq.Upload != nil || len(rq.Pool.Replicas) < 2 && !rq.Keeps ||
		rq.Call.Options.Pinned != "" || strings.EqualFold(rq.Call.Header.Get(HeaderResume), "off") {
		return openai.WayNone
	}
	return rq.Or(rq.Parsed).Continuation().Way()
}

// mayFollow reports whether another replica could resume the answer, if it is streamed and the prompt is not too long.
func (rq *Request) mayFollow() bool {
	switch rq.Way() {
	case openai.WayText:
		return true
	case openai.WayTokens:
		return slices.ContainsFunc(rq.Pool.Replicas, HasTokenRoutes)
	case openai.WayNone, openai.WayRepeat:
	}
	return false
}

// HasTokenRoutes reports whether the replica's version has token routes whose parser can be given an answer again in its portions.
func HasTokenRoutes(r *replica.Replica) bool {
	major, rest, ok := strings.Cut(r.Version, ".")
	if !ok || r.RustFrontend {
		return false
	}
	if major != "0" {
		return major >= "1" && major <= "9"
	}
	minor, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(minor)
	return err == nil && n >= 33
}
