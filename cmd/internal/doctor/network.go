package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// dialTimeout bounds one connection.
const dialTimeout = 2 * time.Second

// sorted are the keys of a map, in order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// dial resolves and connects, and says in which step that failed.
func dial(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// reach is dial for checks that only need to know.
func reach(ctx context.Context, address string) error {
	conn, err := dial(ctx, address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// unreachable explains why an address cannot be dialled; what names the server at the address in the operator's words.
func unreachable(subject, address, what, setting string, err error) []Finding {
	expected := what + " at " + address
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return fault(Fail, subject, expected, fmt.Sprintf("the name %s is not resolved: %s", dns.Name, dns.Err), "correct the name in "+setting+", or the resolver of this machine")
	case errors.Is(err, syscall.ECONNREFUSED):
		return fault(Fail, subject, expected, "the port is closed (connection refused)", "is it started, and does it listen on an address that others reach (vllm serve --host 0.0.0.0), at this port? Else correct "+setting)
	case isTimeout(err):
		return fault(Fail, subject, expected, fmt.Sprintf("no answer within %s", dialTimeout), "let firewalls, security groups and network policies pass TCP from here to there, or correct "+setting)
	}
	return fault(Fail, subject, expected, oneLine(err), "correct the way from this machine to there, or "+setting)
}

func isTimeout(err error) bool {
	var late net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &late) && late.Timeout()
}

// hostPort is the address behind a base URL.
func hostPort(base string) (host, address string, err error) {
	u, err := url.Parse(base)
	if err != nil {
		return "", "", err
	}
	port := u.Port()
	if port == "" {
		if port = "80"; u.Scheme == "https" {
			port = "443"
		}
	}
	return u.Hostname(), net.JoinHostPort(u.Hostname(), port), nil
}

// checkNetwork resolves and dials each replica.
func checkNetwork(ctx context.Context, in scope) []Finding {
	return in.each(func(r *replica.Replica) []Finding {
		_, address, err := hostPort(r.URL)
		if err != nil {
			return fault(Fail, string(r.ID), "a URL", oneLine(err), "correct the replica's url")
		}
		began := time.Now()
		if err := reach(ctx, address); err != nil {
			return unreachable(string(r.ID), address, "vLLM's HTTP server", "the replica's url", err)
		}
		return []Finding{ok(string(r.ID), "%s connects in %s", address, time.Since(began).Round(10*time.Microsecond))}
	})
}

// checkTLS shakes hands with each replica behind https, as the router would.
func checkTLS(ctx context.Context, in scope) []Finding {
	return in.each(func(r *replica.Replica) []Finding {
		host, address, err := hostPort(r.URL)
		if err != nil || !strings.HasPrefix(r.URL, "https://") {
			return nil
		}
		conn, err := dial(ctx, address)
		if err != nil {
			return unreachable(string(r.ID), address, "a TLS server", "the replica's url", err)
		}
		bounded, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		secured, err := r.TLS.Handshake(bounded, conn, host)
		if err != nil {
			reason, change, found := strings.Cut(strings.TrimPrefix(err.Error(), "TLS: "), "; ")
			if !found {
				change = "correct tls of the replica (registry.access.tls or the replica's own), or the server's certificate: vllm serve --ssl-certfile FILE --ssl-keyfile FILE"
			}
			return fault(Fail, string(r.ID), "a certificate for "+host+" of a trusted authority", reason, change)
		}
		defer secured.Close() //nolint:errcheck // nothing was sent
		leaf := secured.ConnectionState().PeerCertificates[0]
		if soon := validity(string(r.ID), leaf, "renew the replica's certificate (vllm serve --ssl-certfile)"); len(soon) > 0 {
			return soon
		}
		return []Finding{ok(string(r.ID), "certificate of %q, valid until %s", leaf.Issuer.CommonName, leaf.NotAfter.UTC().Format(time.DateOnly))}
	})
}

// checkHealth asks each replica's health route.
func checkHealth(ctx context.Context, in scope) []Finding {
	path := in.conf.Registry.Probe.Path
	return in.each(func(r *replica.Replica) []Finding {
		err := in.probe(ctx, r).HealthError
		subject, expected := string(r.ID), "status 200 of "+r.URL+path
		switch status := registry.Refused(err); {
		case err == nil:
			return []Finding{ok(subject, "%s answers 200", path)}
		case status == http.StatusServiceUnavailable:
			return fault(Fail, subject, expected, "status 503: the server answers and its engine is dead or scaling", "look at the engine's log and restart it; kvpilot sends it nothing until it is well")
		case status == http.StatusBadRequest && strings.HasPrefix(r.URL, "http://"):
			return fault(Fail, subject, expected, "status 400", "does the server speak TLS? Then write https:// in the replica's url")
		case status == http.StatusUnauthorized || status == http.StatusForbidden:
			return fault(Fail, subject, expected, fmt.Sprintf("status %d", status), "a proxy in between asks for credentials on "+path+", which vLLM does not guard: let it pass, or give the key as api_key_file of the replica")
		case status == http.StatusNotFound && strings.HasSuffix(r.URL, "/v1"):
			return fault(Fail, subject, expected, "status 404", "remove /v1 from the replica's url: kvpilot asks below and above it")
		case status > 0:
			return fault(Fail, subject, expected, fmt.Sprintf("status %d", status), "is this a vLLM server? Else correct the replica's url, or registry.probe.path")
		case isTimeout(err):
			return fault(Fail, subject, expected, fmt.Sprintf("no answer within %s (registry.probe.timeout)", in.conf.Registry.Probe.Timeout), "the port is open and nothing answers: look at the process (a stopped one, an event loop that is busy), and restart it")
		}
		return fault(Fail, subject, expected, bare(err), "is this a vLLM server? Else correct the replica's url")
	})
}

// checkKey asks for a path that a key guards.
func checkKey(ctx context.Context, in scope) []Finding {
	return in.each(func(r *replica.Replica) []Finding {
		err := in.probe(ctx, r).ModelsError
		switch status := registry.Refused(err); {
		case status != http.StatusUnauthorized && status != http.StatusForbidden:
			if r.APIKey.IsEmpty() {
				return []Finding{ok(string(r.ID), "no key is set and none is asked for")}
			}
			return []Finding{ok(string(r.ID), "the key is accepted")}
		case r.APIKey.IsEmpty():
			return fault(Fail, string(r.ID), "routes under /v1 without a key, since none is set", fmt.Sprintf("status %d: the replica asks for a key", status),
				"set registry.access.api_key_file (or api_key_file of the replica) to a file with the key that vLLM was started with (--api-key or VLLM_API_KEY)")
		default:
			return fault(Fail, string(r.ID), "the replica accepts the configured key", fmt.Sprintf("status %d: it refuses the key", status),
				"write the key that vLLM was started with (--api-key or VLLM_API_KEY) into registry.access.api_key_file, or into the replica's own api_key_file")
		}
	})
}
