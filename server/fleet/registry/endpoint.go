package registry

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Why a source's endpoint is no replica.
const (
	// leftAddress: no replica has such an address, or it is none.
	leftAddress = "address"
	// leftLimit: the source lists more endpoints than it may have.
	leftLimit = "limit"
	// leftInvalid: the endpoint makes no valid replica.
	leftInvalid = "invalid"
)

// defaultMaxEndpoints bounds the replicas of one Service or one DNS name: each is probed, by a goroutine of its own.
const defaultMaxEndpoints = 4096

// errAddress is the root of the errors of addresses that are not dialled.
var errAddress = errors.New("is not an address of a replica")

// checkAddress rejects addresses that no other machine's replica has: addresses of a link (cloud metadata), multicast, none and,
// unless near, of this machine. near is for API servers on this machine, as tests and kubectl proxy have them.
func checkAddress(ip netip.Addr, near bool) error {
	ip = ip.Unmap().WithZone("")
	switch {
	case !ip.IsValid(), ip.IsUnspecified(), ip.IsLinkLocalUnicast(), ip.IsMulticast(), ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}),
		ip.IsLoopback() && !near:
		return fmt.Errorf("%s %w: link-local, loopback, multicast and unspecified addresses are refused", ip, errAddress)
	}
	return nil
}

// checkEndpoint is checkAddress for text, which must be an address and no name.
func checkEndpoint(text string, near bool) error {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return fmt.Errorf("%.64q %w: it must be an IP address", text, errAddress)
	}
	return checkAddress(ip, near)
}

// isNear reports whether a URL's host is this machine.
func isNear(server string) bool {
	u, err := url.Parse(server)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}

// isNumber reports hosts that some resolvers read as an IPv4 address in another form: 2852039166, 0xa9.254.169.254.
func isNumber(host string) bool {
	last := strings.ToLower(strings.TrimSuffix(host, "."))
	last = last[strings.LastIndexByte(last, '.')+1:]
	digits := strings.TrimPrefix(last, "0x")
	if last == "" || len(digits) < len(last) {
		return last != ""
	}
	return strings.Trim(last, "0123456789") == ""
}

// leftOut counts the endpoints that a source lists and that are no replicas, by the reason. It is safe for concurrent use.
type leftOut struct {
	mu      sync.Mutex
	sources map[string]map[string]int // guarded by mu; by source and reason
}

// set replaces a source's counts, and reports whether they changed.
func (l *leftOut) set(source string, counts map[string]int) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sources == nil {
		l.sources = map[string]map[string]int{}
	}
	old := l.sources[source]
	for _, reason := range [...]string{leftAddress, leftLimit, leftInvalid} {
		changed = changed || old[reason] != counts[reason]
	}
	l.sources[source] = counts
	return changed
}

func (l *leftOut) observe(_ context.Context, see func(n int64, labels metric.MeasurementOption)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for source, counts := range l.sources {
		for _, reason := range [...]string{leftAddress, leftLimit, leftInvalid} {
			see(int64(counts[reason]), metric.WithAttributes(attribute.String("source", source), attribute.String("reason", reason)))
		}
	}
}
