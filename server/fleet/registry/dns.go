package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

const (
	defaultDNSInterval = 15 * time.Second
	dnsTimeout         = 5 * time.Second
	// absentLooks is how many consecutive lookups must not find a name before its replicas are removed.
	absentLooks = 3
)

// Resolver looks up names; net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

// watchDNS keeps the replicas of a DNS name up to date. A failed look-up leaves them as they are;
// a name that stays unknown takes them away.
func (r *Registry) watchDNS(ctx context.Context, conf DNSConfig) error {
	source := sourceDNS + conf.Name
	interval := conf.Interval
	if interval == 0 {
		interval = defaultDNSInterval
	}
	absent := 0
	var last []string
	for {
		hosts, err := r.lookup(ctx, conf)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			absent = 0
		case notFound(err):
			absent++
		}
		if err != nil && absent < absentLooks {
			r.metrics.sourceFailed(ctx, source)
			r.log.Warn("name not resolved, its replicas are kept", "name", conf.Name, "error", err)
		} else if last == nil || !slices.Equal(hosts, last) {
			specs, err := r.dnsSpecs(conf, hosts)
			if err != nil {
				return fmt.Errorf("replicas of %s: %w", conf.Name, err) // the template is at fault
			}
			r.offer(source, specs)
			last = hosts
			if last == nil {
				last = []string{}
			}
		}
		if !pause(ctx, interval) {
			return nil
		}
	}
}

// lookup returns the sorted host:port pairs of a name.
func (r *Registry) lookup(ctx context.Context, conf DNSConfig) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, dnsTimeout)
	defer cancel()
	var hosts []string
	left := map[string]int{}
	if conf.SRV {
		_, records, err := r.params.Resolver.LookupSRV(ctx, "", "", conf.Name)
		if err != nil && len(records) == 0 {
			return nil, fmt.Errorf("look up: %w", err)
		}
		for _, rec := range records {
			target := strings.TrimSuffix(rec.Target, ".")
			if ip, err := netip.ParseAddr(target); err == nil && checkAddress(ip, true) != nil || err != nil && isNumber(target) {
				left[leftAddress]++
				continue
			}
			hosts = append(hosts, net.JoinHostPort(target, strconv.Itoa(int(rec.Port))))
		}
	} else {
		addrs, err := r.params.Resolver.LookupNetIP(ctx, "ip", conf.Name)
		if err != nil {
			return nil, fmt.Errorf("look up: %w", err)
		}
		for _, a := range addrs {
			if checkAddress(a, true) != nil { // a name of this machine may lead to it
				left[leftAddress]++
				continue
			}
			hosts = append(hosts, net.JoinHostPort(a.Unmap().String(), strconv.Itoa(conf.Port)))
		}
	}
	slices.Sort(hosts)
	hosts = slices.Compact(hosts)
	if above := len(hosts) - defaultMaxEndpoints; above > 0 {
		left[leftLimit], hosts = above, hosts[:defaultMaxEndpoints]
	}
	r.leaveOut(sourceDNS+conf.Name, left, defaultMaxEndpoints)
	return hosts, nil
}

// dnsSpecs fills the template for each host. The ids hide the addresses, because clients see them.
func (r *Registry) dnsSpecs(conf DNSConfig, hosts []string) ([]Spec, error) {
	scheme := "http://"
	if conf.TLS {
		scheme = "https://"
	}
	var errs []error
	specs := make([]Spec, 0, len(hosts))
	label, _, _ := strings.Cut(strings.TrimLeft(conf.Name, "_"), ".")
	for _, host := range hosts {
		s := conf.Template
		s.URL = scheme + host
		s.ID = replica.ID(fmt.Sprintf("%s-%08x", label, uint32(xxh3.HashString(conf.Name+"/"+host))))
		s, err := s.complete(r.config().Events)
		if err == nil {
			_, err = r.keys.Load().of(s, false)
		}
		errs = append(errs, err)
		specs = append(specs, s)
	}
	return specs, errors.Join(errs...)
}
