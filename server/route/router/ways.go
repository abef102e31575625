package router

import (
	"slices"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/resume"
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

// otherRoutes remembers whether a request's pool has another replica with token routes. The zero value does not know yet.
type otherRoutes struct{ known, yes bool }

// exist reports whether there is another one, as of the first call.
func (o *otherRoutes) exist(rq *request) bool {
	if !o.known {
		n := 0
		for _, r := range rq.pool.Replicas {
			if hasTokenRoutes(r) {
				n++
			}
		}
		o.known, o.yes = true, n > 1
	}
	return o.yes
}

// parserOf reports whether the answer may be one that the replica's parser takes apart, and that another one can continue.
func parserOf(rq *request, way openai.Way, r *replica.Replica) resume.Parser {
	if way == openai.WayNone || !hasTokenRoutes(r) {
		return resume.NoParser
	}
	switch way {
	case openai.WayTokens:
		return resume.HasParser
	case openai.WayText:
		if rq.or(rq.parsed).Route == openai.RouteChat {
			return resume.PerhapsParser
		}
	case openai.WayNone, openai.WayRepeat:
	}
	return resume.NoParser
}

// The routes by which an engine continues an answer that a parser takes apart.
const (
	pathGenerate = "/inference/v1/generate"
	pathRender   = "/v1/chat/completions/render"
	pathDerender = "/v1/chat/completions/derender"
)
