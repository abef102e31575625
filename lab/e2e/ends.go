package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/kvpilot/kvpilot/internal/compare"
)

// sampledKind is a kind of sampled streams, and the minor version from which on another engine continues them; 0: none does.
type sampledKind struct {
	tokenKind
	since int
}

// sampledKinds are the kinds. A stream that no engine continues ends with an error.
func sampledKinds() (list []sampledKind) {
	since := map[string]int{"chat": 11, "completion": 11, "stop strings": 11, "tools auto": 33, "messages with tools": 33}
	for _, k := range tokenKinds() {
		list = append(list, sampledKind{*k, since[k.name]})
	}
	return list
}

// checkEnds cuts sampled streams of each kind. Where this version lacks a part of a continuation, the stream ends with an error; all others are continued.
func (r *disturbances) checkEnds(ctx context.Context) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	letters, err := r.letters(ctx)
	if err != nil {
		return "", err
	}
	p, c, err := r.behindCutter(ctx, "ends", "")
	if err != nil {
		return "", err
	}
	defer p.stop()
	var continued, ended []string
	for _, k := range sampledKinds() {
		body := k.body(1, letters)
		body["temperature"] = 0.8
		var stream string
		for range 4 { // the cut is for the next stream of an engine
			c.cut(3)
			if stream, err = readStream(ctx, p.url()+k.path, body); err != nil {
				return "", fmt.Errorf("%s: %w", k.name, err)
			}
			if !c.spared() {
				break
			}
		}
		broken := strings.Contains(stream, "upstream_stream_broken") || strings.Contains(stream, "the replica's answer ended early")
		switch is := k.since > 0 && r.atLeast(k.since); {
		case broken == is, !broken && !compare.IsWhole(stream):
			return "", fmt.Errorf("%s: the client has %s", k.name, stream)
		case is:
			continued = append(continued, k.name)
		default:
			ended = append(ended, k.name)
		}
	}
	return fmt.Sprintf("sampled, cut after three events: continued %s; ended with an error %s", strings.Join(continued, ", "), strings.Join(ended, ", ")), nil
}
