package enginesim

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/sim/enginesim/feed"
)

// version is major, minor and patch.
type version [3]int

func parseVersion(s string) (version, error) {
	var v version
	parts := strings.Split(s, ".")
	if len(parts) < 2 || len(parts) > 3 {
		return v, fmt.Errorf("version %q is not of the form 0.32.0", s)
	}
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil || n < 0 {
			return v, fmt.Errorf("version %q is not of the form 0.32.0", s)
		}
		v[i] = n
	}
	return v, nil
}

func (v version) atLeast(minor, patch int) bool {
	if v[0] != 0 {
		return v[0] > 0
	}
	return v[1] > minor || v[1] == minor && v[2] >= patch
}

// feature is one difference between versions that matters to a router. It is there from a version on.
type feature int

const (
	// nestedErrors: the error object is the value of "error"; before, it is the body itself.
	nestedErrors feature = iota
	// errorParam: a wrong model is named in param, and validation errors give their place.
	errorParam
	// render serves /render; renderGuarded hides it behind --enable-scale-out.
	render
	renderGuarded
	// renderAll: /v1/messages and /v1/responses have a /render too.
	renderAll
	// chatIDs: kv_transfer_params.prompt_token_ids replaces template and tokenizer.
	chatIDs
	// returnIDs: return_token_ids is known; rankHeader: X-data-parallel-rank is.
	returnIDs
	rankHeader
	responses
	messages
	// messagesSalt: /v1/messages takes cache_salt; in a version between 0.27 and 0.32.
	messagesSalt
	// realtime: /v1/realtime is a WebSocket.
	realtime
	// modern are the answer shapes captured from 0.32.0; else the shapes from 0.12.0. The versions
	// between have some of each; the line is drawn in the middle.
	modern
	// missIsZero: cached_tokens of a miss is 0, not null or absent.
	missIsZero
	// newUsage: the gauge is no longer called gpu_cache_usage_perc too.
	newUsage
	// computedTokens: request_prefill_kv_computed_tokens is counted.
	computedTokens
	// sources: the prompt tokens are counted by where they came from.
	sources
	// resetReply: /reset_prefix_cache answers a body.
	resetReply
	replayTopic
	// eventSources: /kv_event_sources says where each rank publishes.
	eventSources
	// lateEvents: a block's event comes when its tokens are computed, not when it is scheduled.
	lateEvents
	// derender: answers may have thoughts, /derender parses a stream in portions, and /inference/v1/generate streams token ids.
	derender
	// offloadMetrics: the OffloadingConnector reports the size of its host memory and the bytes that it has stored there.
	offloadMetrics
)

// since is the version, minor and patch, that brought each feature.
var since = [...][2]int{
	nestedErrors: {10, 1}, errorParam: {20, 0},
	render: {18, 0}, renderGuarded: {32, 0}, renderAll: {32, 0},
	chatIDs: {27, 0}, returnIDs: {10, 2}, rankHeader: {11, 1},
	responses: {10, 0}, messages: {11, 1}, messagesSalt: {32, 0}, realtime: {16, 0},
	modern: {20, 0}, missIsZero: {32, 0}, newUsage: {11, 0}, computedTokens: {13, 0}, sources: {16, 0}, resetReply: {20, 0},
	replayTopic: {26, 0}, eventSources: {32, 0}, lateEvents: {11, 1}, derender: {33, 0}, offloadMetrics: {33, 0},
}

// features are the features of one version.
type features struct {
	name    string
	version version
	layout  feed.Layout
}

func featuresOf(v version, name string) features {
	f := features{name: name, version: v}
	for _, part := range []struct {
		minor, patch int
		layout       feed.Layout
	}{
		{24, 0, feed.Maps}, {11, 0, feed.Medium}, {14, 0, feed.LoRAName}, {18, 0, feed.ExtraKeys}, {19, 0, feed.ItemOffsets}, {21, 0, feed.Group}, {23, 0, feed.SpecKind}, {27, 0, feed.Locality},
	} {
		if v.atLeast(part.minor, part.patch) {
			f.layout |= part.layout
		}
	}
	if !v.atLeast(10, 2) {
		f.layout |= feed.SignedHashes
	}
	return f
}

func (f *features) has(one feature) bool { return f.version.atLeast(since[one][0], since[one][1]) }
