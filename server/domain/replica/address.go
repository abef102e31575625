package replica

import (
	"net"
	"strconv"
	"strings"
)

// HostPort splits a replica's base URL for callers that open their own connections.
func HostPort(base string) (host string, port int) {
	scheme, rest, _ := strings.Cut(base, "://")
	address, _, _ := strings.Cut(rest, "/")
	if h, p, err := net.SplitHostPort(address); err == nil {
		if port, err = strconv.Atoi(p); err == nil {
			return h, port
		}
	}
	port = 80
	if scheme == "https" {
		port = 443
	}
	return strings.Trim(address, "[]"), port
}
