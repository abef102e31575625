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

// features are what differs between versions and matters to a router.
type features struct {
	name string
	// flatErrors: the error object is the body itself (up to 0.10.0).
	flatErrors bool
	// errorParam: a wrong model is named in param, and validation errors give their place.
	errorParam bool
	// render serves /render; renderGuarded hides it behind --enable-scale-out.
	render, renderGuarded bool
	// renderAll: /v1/messages and /v1/responses have a /render too.
	renderAll bool
	// chatIDs: kv_transfer_params.prompt_token_ids replaces template and tokenizer.
	chatIDs bool
	// returnIDs: return_token_ids is known; rankHeader: X-data-parallel-rank is.
	returnIDs, rankHeader bool
	responses, messages   bool
	// messagesSalt: /v1/messages takes cache_salt; in a version between 0.27 and 0.32.
	messagesSalt bool
	// realtime: /v1/realtime is a WebSocket.
	realtime bool
	// modern are the answer shapes captured from 0.32.0; else those from 0.12.0. The versions
	// between have some of each; the line is drawn in the middle.
	modern bool
	// missIsZero: cached_tokens of a miss is 0, not null or absent.
	missIsZero bool
	// oldUsage: the gauge is called gpu_cache_usage_perc too.
	oldUsage bool
	// computedTokens: request_prefill_kv_computed_tokens is counted.
	computedTokens bool
	// resetReply: /reset_prefix_cache answers a body.
	resetReply  bool
	replayTopic bool
	// eventSources: /kv_event_sources says where each rank publishes.
	eventSources bool
	earlyEvents  bool
	layout       feed.Layout
}

func featuresOf(v version, name string) features {
	return features{
		name:       name,
		flatErrors: !v.atLeast(10, 1), errorParam: v.atLeast(20, 0),
		render: v.atLeast(18, 0), renderGuarded: v.atLeast(32, 0), renderAll: v.atLeast(32, 0),
		chatIDs:   v.atLeast(27, 0),
		returnIDs: v.atLeast(10, 2), rankHeader: v.atLeast(11, 1),
		responses: v.atLeast(10, 0), messages: v.atLeast(11, 1), messagesSalt: v.atLeast(32, 0), realtime: v.atLeast(16, 0),
		modern: v.atLeast(20, 0), missIsZero: v.atLeast(32, 0),
		oldUsage: !v.atLeast(11, 0), computedTokens: v.atLeast(13, 0), resetReply: v.atLeast(20, 0),
		replayTopic: v.atLeast(26, 0), eventSources: v.atLeast(32, 0), earlyEvents: !v.atLeast(11, 1),
		layout: feed.Layout{
			Maps: v.atLeast(24, 0), SignedHashes: !v.atLeast(10, 2), Medium: v.atLeast(11, 0),
			LoRAName: v.atLeast(14, 0), ExtraKeys: v.atLeast(18, 0), ItemOffsets: v.atLeast(19, 0),
			Group: v.atLeast(21, 0), SpecKind: v.atLeast(23, 0),
		},
	}
}
