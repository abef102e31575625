package registry

import (
	"cmp"
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
	"github.com/kvpilot/kvpilot/server/kit/sleep"
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

// dnsSource is a DNS name with the addresses of replicas.
type dnsSource struct {
	in       *intake
	conf     DNSConfig
	resolver Resolver
}

// watch keeps the replicas of a DNS name up to date. A failed look-up leaves them as they are;
// a name that stays unknown takes them away.
func (d *dnsSource) watch(ctx context.Context) error {
	source := sourceDNS + d.conf.Name
	interval := cmp.Or(d.conf.Interval, defaultDNSInterval)
	absent := 0
	var last []string
	for {
		hosts, err := d.lookup(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			absent = 0
		case notFound(err):
			absent++
		}
		if err != nil && absent < absentLooks {
			d.in.metrics.sourceFailed(ctx, source)
			d.in.log.Warn("name not resolved, its replicas are kept", "name", d.conf.Name, "error", err)
		} else if last == nil || !slices.Equal(hosts, last) {
			specs, err := d.specs(hosts)
			if err != nil {
				return fmt.Errorf("replicas of %s: %w", d.conf.Name, err) // the template is at fault
			}
			d.in.offer(source, specs)
			last = hosts
			if last == nil {
				last = []string{}
			}
		}
		if !sleep.For(ctx, interval) {
			return nil
		}
	}
}

// lookup returns the sorted host:port pairs of a name.
func (d *dnsSource) lookup(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, dnsTimeout)
	defer cancel()
	var hosts []string
	left := map[string]int{}
	if d.conf.SRV {
		_, records, err := d.resolver.LookupSRV(ctx, "", "", d.conf.Name)
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
		addrs, err := d.resolver.LookupNetIP(ctx, "ip", d.conf.Name)
		if err != nil {
			return nil, fmt.Errorf("look up: %w", err)
		}
		for _, a := range addrs {
			if checkAddress(a, true) != nil { // a name of this machine may lead to it
				left[leftAddress]++
				continue
			}
			hosts = append(hosts, net.JoinHostPort(a.Unmap().String(), strconv.Itoa(d.conf.Port)))
		}
	}
	slices.Sort(hosts)
	hosts = slices.Compact(hosts)
	if above := len(hosts) - defaultMaxEndpoints; above > 0 {
		left[leftLimit], hosts = above, hosts[:defaultMaxEndpoints]
	}
	d.in.leaveOut(sourceDNS+d.conf.Name, left, defaultMaxEndpoints)
	return hosts, nil
}

// examine implements source.
func (d *dnsSource) examine(ctx context.Context, setting string) []SourceExamination {
	hosts, err := d.lookup(ctx)
	return []SourceExamination{{Setting: setting, What: d.conf.Name, Replicas: len(hosts), Err: err}}
}

// specs fills the template for each host. The ids hide the addresses, because clients see them.
func (d *dnsSource) specs(hosts []string) ([]Spec, error) {
	var errs []error
	specs := make([]Spec, 0, len(hosts))
	label, _, _ := strings.Cut(strings.TrimLeft(d.conf.Name, "_"), ".")
	for _, host := range hosts {
		s := d.conf.Template
		s.URL = httpsOr(d.conf.TLS) + host
		s.ID = replica.ID(fmt.Sprintf("%s-%08x", label, uint32(xxh3.HashString(d.conf.Name+"/"+host))))
		s, err := d.in.settings.complete(s)
		errs = append(errs, err)
		specs = append(specs, s)
	}
	return specs, errors.Join(errs...)
}
