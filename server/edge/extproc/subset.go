package extproc

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// The metadata that gateways and the endpoint picker exchange.
const (
	namespaceSubset = "envoy.lb.subset_hint"
	keySubset       = "x-gateway-destination-endpoint-subset"
	namespaceLB     = "envoy.lb"
	keyEndpoint     = "x-gateway-destination-endpoint"
	keyServed       = "x-gateway-destination-endpoint-served"
)

// mostHints bounds the endpoints of a subset.
const mostHints = 10_000

// hints are the endpoints that the gateway allows, as IP addresses with or without a port. given is false when it names none.
func hints(m *corev3.Metadata) (list []string, given bool) {
	value, ok := m.GetFilterMetadata()[namespaceSubset].GetFields()[keySubset]
	if !ok {
		return nil, false
	}
	switch kind := value.GetKind().(type) {
	case *structpb.Value_ListValue:
		for _, v := range kind.ListValue.GetValues() {
			list = append(list, v.GetStringValue())
		}
	case *structpb.Value_StringValue:
		list = strings.Split(kind.StringValue, ",")
	default:
		return nil, false
	}
	list = slices.DeleteFunc(list, func(text string) bool { return strings.TrimSpace(text) == "" })
	for i := range list {
		list[i] = canonicalEndpoint(strings.TrimSpace(list[i]))
	}
	return list[:min(len(list), mostHints)], true
}

// canonicalEndpoint writes an address as endpoints does.
func canonicalEndpoint(text string) string {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()
	}
	if ip, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return ip.Unmap().String()
	}
	return text
}

// limit restricts the choice to the endpoints that the gateway allows.
func (e *endpoints) limit(ctx context.Context, s *registry.Snapshot, m *corev3.Metadata, to *chooser.Options) error {
	list, given := hints(m)
	if !given {
		return nil
	}
	allowed := make(map[string]bool, len(list))
	for _, text := range list {
		allowed[text] = true
	}
	var ids []replica.ID
	for _, r := range s.Replicas {
		at, ok := e.of(ctx, r)
		if !ok {
			continue
		}
		host, _, _ := net.SplitHostPort(at) // made of the two
		if (allowed[at] || allowed[host]) && (len(to.Allowed) == 0 || slices.Contains(to.Allowed, r.ID)) {
			ids = append(ids, r.ID)
		}
	}
	if len(ids) == 0 {
		return apierror.New(apierror.NoReplica, "no replica is among the endpoints that the gateway allows (x-gateway-destination-endpoint-subset)", nil)
	}
	to.Allowed = ids
	return nil
}

// served is the endpoint that the gateway reports to have served the request; empty when it reports none.
func served(m *corev3.Metadata) string {
	text := m.GetFilterMetadata()[namespaceLB].GetFields()[keyServed].GetStringValue()
	if text == "" {
		return ""
	}
	return canonicalEndpoint(strings.TrimSpace(text))
}
