package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// sourcesPath is where vLLM lists, from 0.32 on, which sockets each data-parallel rank publishes on.
const sourcesPath = "/kv_event_sources"

// asks reports whether the replica itself is asked where its events are.
func (s Spec) asks() bool { return s.Events.Endpoint == "" }

// listsSources reports whether a vLLM of this version has the route; of an unknown version it may.
func listsSources(version string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 { // a development build, or no vLLM
		return true
	}
	return major > 0 || minor >= 32 || minor == 0 // 0.0 is a build that does not know its version
}

// readSources reads vLLM's answer: by rank number, the settings that each publisher runs with. base is the
// replica's URL. The result is in rank order; an engine that publishes nothing has an empty list.
func readSources(body []byte, base string) ([]replica.Events, error) {
	var answer map[string]struct {
		Enabled   *bool   `json:"enable_kv_cache_events"`
		Publisher *string `json:"publisher"`
		Endpoint  *string `json:"endpoint"`
		Replay    *string `json:"replay_endpoint"`
		Topic     *string `json:"topic"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("%s: %w", sourcesPath, err)
	}
	if len(answer) > maxRanks {
		return nil, fmt.Errorf("%s: %d ranks, at most %d are allowed", sourcesPath, len(answer), maxRanks)
	}
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	names := make(map[int]string, len(answer))
	for name := range answer {
		rank, err := strconv.Atoi(name)
		if err != nil || rank < 0 {
			return nil, fmt.Errorf("%s: %q is not a rank", sourcesPath, name)
		}
		names[rank] = name
	}
	list := make([]replica.Events, 0, len(names))
	var errs []error
	published := false
	// A replica of a fleet whose ranks have addresses of their own names only its own one: behind this address the place in the list counts.
	for place, rank := range slices.Sorted(maps.Keys(names)) {
		s := answer[names[rank]]
		events := replica.Events{Rank: place, Topic: deref(s.Topic)}
		if (s.Enabled == nil || *s.Enabled) && (s.Publisher == nil || *s.Publisher == "zmq") && deref(s.Endpoint) != "" {
			events.Endpoint, err = boundAddress(*s.Endpoint, u.Hostname())
			errs = append(errs, err)
			if deref(s.Replay) != "" {
				events.Replay, err = boundAddress(*s.Replay, u.Hostname())
				errs = append(errs, err)
			}
			published = published || events.Endpoint != ""
		}
		list = append(list, events)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("%s: %w", sourcesPath, err)
	}
	if !published && len(list) < 2 {
		return list[:0], nil
	}
	return list, nil
}

// boundAddress turns an address as an engine has bound it into one to dial: a wildcard is the replica's host.
func boundAddress(endpoint, host string) (string, error) {
	if path, ok := strings.CutPrefix(endpoint, "ipc://"); ok {
		if ip := net.ParseIP(host); path == "" || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return "", fmt.Errorf("%q is a socket of the replica's own machine", endpoint)
		}
		return endpoint, nil
	}
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", fmt.Errorf("%q: only tcp and ipc can be dialled", endpoint)
	}
	address, err := tcpAddress(rest, host, 0, true, true)
	if err != nil {
		return "", err
	}
	at, _, _ := net.SplitHostPort(strings.TrimPrefix(address, "tcp://")) // tcpAddress made it
	if ip, err := netip.ParseAddr(at); at != strings.Trim(host, "[]") && (err == nil && checkAddress(ip, true) != nil || err != nil && isNumber(at)) {
		return "", fmt.Errorf("%q: %w", endpoint, errAddress)
	}
	return address, nil
}
