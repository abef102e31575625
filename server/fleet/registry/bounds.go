package registry

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/kvpilot/kvpilot/server/kit/check"
)

// ErrForbidden: the settings do not allow replicas at such an address to register.
var ErrForbidden = errors.New("registration is not allowed from this address")

// ErrRanks: the registered replicas would have more ranks together than Config allows.
var ErrRanks = errors.New("too many ranks of registered replicas")

// networks parses Networks.
func (c RegistrationConfig) networks() ([]netip.Prefix, error) {
	list := make([]netip.Prefix, 0, len(c.Networks))
	var errs []error
	for i, text := range c.Networks {
		p, err := netip.ParsePrefix(text)
		errs = append(errs, check.That(err == nil, fmt.Sprintf("networks[%d]", i), "must be a network such as 10.0.0.0/8, is %q", text))
		list = append(list, p)
	}
	return list, errors.Join(errs...)
}

// permit rejects a caller's spec with addresses that the router must not dial: otherwise the caller could
// reach through the router everything that the router can reach.
func (c RegistrationConfig) permit(s Spec) error {
	networks, err := c.networks()
	if err != nil {
		return err
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		return fmt.Errorf("url: %w", err)
	}
	if err := reachable(u.Hostname(), networks); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	for name, address := range map[string]string{"events.endpoint": s.Events.Endpoint, "events.replay": s.Events.Replay} {
		if address == "" || address == none {
			continue
		}
		scheme, rest, _ := strings.Cut(address, "://")
		if scheme != "tcp" && scheme != "grpc" && scheme != "grpcs" {
			return fmt.Errorf("%s: %w: only tcp, grpc and grpcs addresses", name, ErrForbidden)
		}
		host := rest[:max(strings.LastIndexByte(rest, ':'), 0)]
		if host == "*" || host == "{host}" {
			continue // the URL's
		}
		if err := reachable(strings.Trim(host, "[]"), networks); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// reachable checks one host. With networks it must be an address in one of them: a name may lead
// anywhere later. Addresses of a link (cloud metadata), multicast and none are no replica's.
func reachable(host string, networks []netip.Prefix) error {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		if isNumber(host) {
			return fmt.Errorf("%w: %q is read as an address by some resolvers: write it as one", ErrForbidden, host)
		}
		if len(networks) > 0 {
			return fmt.Errorf("%w: %q must be an IP address, because registry.registration.networks is set", ErrForbidden, host)
		}
		return nil
	}
	ip = ip.Unmap().WithZone("")
	if checkAddress(ip, true) != nil {
		return fmt.Errorf("%w: %s", ErrForbidden, ip)
	}
	if len(networks) == 0 {
		return nil
	}
	for _, n := range networks {
		if n.Contains(ip) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s is in none of registry.registration.networks", ErrForbidden, ip)
}
