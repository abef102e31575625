package router

import (
	"slices"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// way is how another replica could resume the answer, if it is streamed and the prompt is not too long.
func (rq *request) way() openai.Way {
	if rq.set.ResumeStreams == 0 || rq.question != nil || !rq.call.Route.Generates() || rq.upload != nil || len(rq.pool.Replicas) < 2 && !rq.keeps ||
		rq.call.Options.Pinned != "" || strings.EqualFold(rq.call.Header.Get(headerResume), "off") {
		return openai.WayNone
	}
	return rq.or(rq.parsed).Continuation().Way()
}

// mayFollow reports whether another replica could resume the answer, if it is streamed and the prompt is not too long.
func (rq *request) mayFollow() bool {
	switch rq.way() {
	case openai.WayText:
		return true
	case openai.WayTokens:
		return slices.ContainsFunc(rq.pool.Replicas, hasTokenRoutes)
	case openai.WayNone, openai.WayRepeat:
	}
	return false
}

// hasTokenRoutes reports whether the replica's version has token routes whose parser can be given an answer again in its portions.
func hasTokenRoutes(r *replica.Replica) bool {
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
