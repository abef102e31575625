package doctor

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/kvpilot/kvpilot/client"
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// router recognizes a kvpilot that listens at an address.
type router interface {
	answers(ctx context.Context, address string) bool
}

// ownAddress is an address that the router listens on.
type ownAddress struct {
	setting, address string
	router           router // nil: a kvpilot cannot be recognized there
}

// checkListen opens each of the router's own addresses for a moment.
func checkListen(ctx context.Context, in scope) (list []Finding) {
	l := in.conf.Listen
	own := []ownAddress{
		{"listen.http", l.HTTP, overHTTP{l.TLSCert != "", "/kvpilot/v1/status"}},
		{"listen.grpc", l.GRPC, overGRPC{l.TLSCert != ""}},
		{"listen.admin", l.Admin, overHTTP{l.AdminTLS, "/console"}},
	}
	if in.conf.Fleet.Listen != "" {
		own = append(own, ownAddress{"fleet.listen", in.conf.Fleet.Listen, nil}, ownAddress{"fleet.rpc_listen", in.conf.Fleet.RPCAddress(), nil})
	}
	running := false
	for _, o := range own {
		if o.address == "" {
			continue
		}
		err := listens(ctx, o.address)
		switch {
		case err == nil:
			list = append(list, ok(o.setting, "%s is free", o.address))
		case errors.Is(err, syscall.EADDRINUSE) && (o.router != nil && o.router.answers(ctx, dialable(o.address)) || running && strings.HasPrefix(o.setting, "fleet.")):
			running = true
			list = append(list, ok(o.setting, "%s is held by a running kvpilot", o.address))
		case errors.Is(err, syscall.EADDRINUSE):
			list = append(list, fault(Fail, o.setting, "a free address, or one that a kvpilot holds", o.address+" is in use by another program", "end that program (ss -ltnp shows it), or set another port in "+o.setting)...)
		case errors.Is(err, syscall.EACCES):
			list = append(list, fault(Fail, o.setting, "an address that may be opened", o.address+": permission denied", "choose a port above 1023, or grant CAP_NET_BIND_SERVICE")...)
		default:
			list = append(list, fault(Fail, o.setting, "an address of this machine", oneLine(err), "write an address that this machine has, or :PORT for all, in "+o.setting)...)
		}
	}
	return list
}

// listens opens an address and closes it again.
func listens(ctx context.Context, address string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}

// dialable is where an address that is listened on can be reached on this machine.
func dialable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// anyone is TLS without a check of the certificate: only what kind of program answers matters, and nothing secret is sent.
func anyone() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}
}

// overHTTP is a router that serves a path.
type overHTTP struct {
	secure bool
	path   string
}

func (r overHTTP) answers(ctx context.Context, address string) bool {
	scheme := "http://"
	if r.secure {
		scheme = "https://"
	}
	c := &http.Client{Timeout: dialTimeout, Transport: &http.Transport{TLSClientConfig: anyone(), DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+address+r.path, nil)
	if err != nil {
		return false
	}
	resp, err := c.Do(req)
	if err != nil {
		return strings.Contains(err.Error(), "tls: certificate required")
	}
	defer resp.Body.Close()
	for name, values := range resp.Header {
		if strings.HasPrefix(name, "X-Kvpilot") || strings.Contains(strings.Join(values, " "), "kvpilot") {
			return true
		}
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return err == nil && (bytes.Contains(text, []byte("kvpilot")) || bytes.Contains(text, []byte(`"policy"`)) && bytes.Contains(text, []byte(`"uptime"`)))
}

// overGRPC is a router that serves its status.
type overGRPC struct{ secure bool }

func (r overGRPC) answers(ctx context.Context, address string) bool {
	var options []client.Option
	if r.secure {
		options = append(options, client.WithTLS(anyone()))
	}
	c, err := client.Dial(address, options...)
	if err != nil {
		return false
	}
	defer c.Close() //nolint:errcheck // nothing was changed
	bounded, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	_, err = c.Router().GetStatus(bounded, &kvpilotv1.GetStatusRequest{})
	return err == nil || client.Reason(err) != kvpilotv1.ErrorReason_ERROR_REASON_UNSPECIFIED
}

// checkPeers dials the routers that are to be joined.
func checkPeers(ctx context.Context, in scope) (list []Finding) {
	f := in.conf.Fleet
	if f.Listen == "" {
		return []Finding{ok("", "the router is alone (fleet.listen is empty)")}
	}
	own := dialable(f.Listen)
	for _, address := range f.Join {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			continue // the settings were refused
		}
		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			list = append(list, unreachable("fleet.join", address, "a router", "fleet.join", err)...)
			continue
		}
		for _, ip := range ips {
			at := net.JoinHostPort(ip, port)
			if at == own {
				continue
			}
			if err := reach(ctx, at); err != nil {
				found := unreachable("fleet.join", at, "the gossip of a router", "fleet.join", err)
				found[0].Status = Warn // it may be a router that starts later
				found[0].Change = "start the other router, and let firewalls pass its fleet.listen port over TCP and UDP and its fleet.rpc_listen port over TCP; kvpilot doctor --server reports whether running routers agree"
				list = append(list, found...)
			}
		}
	}
	if len(list) > 0 {
		return list
	}
	return []Finding{ok("", "%d addresses to join can be reached", len(f.Join))}
}

// checkTraces dials the collector, and speaks TLS with it unless the settings say not to.
func checkTraces(ctx context.Context, in scope) []Finding {
	t := in.conf.Telemetry.Traces
	if t.Endpoint == "" {
		return []Finding{ok("", "no OTLP endpoint is set")}
	}
	address, secure := t.Endpoint, !t.Insecure
	if u, err := url.Parse(t.Endpoint); err == nil && u.Host != "" {
		if _, address, err = hostPort(t.Endpoint); err != nil {
			return fault(Fail, "telemetry.traces.endpoint", "a URL", err.Error(), "correct it")
		}
		secure = u.Scheme == "https" && !t.Insecure
	}
	conn, err := dial(ctx, address)
	if err != nil {
		found := unreachable("telemetry.traces.endpoint", address, "an OTLP collector", "telemetry.traces.endpoint", err)
		found[0].Status = Warn // requests do not need it
		if errors.Is(err, syscall.ECONNREFUSED) {
			found[0].Change = "start the collector (OTLP over gRPC is port 4317, over HTTP 4318), or correct telemetry.traces.endpoint"
		}
		return found
	}
	defer conn.Close()
	if secure {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			host = address
		}
		bounded, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		if err := tls.Client(conn, &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}).HandshakeContext(bounded); err != nil {
			return fault(Warn, "telemetry.traces.endpoint", "TLS at "+address+", since telemetry.traces.insecure is false", oneLine(err), "set telemetry.traces.insecure: true for a collector without TLS, or correct its certificate")
		}
	}
	return []Finding{ok("", "%s connects", address)}
}

// checkIssuer reads the keys of the tokens' issuer.
func checkIssuer(ctx context.Context, in scope) []Finding {
	j := in.conf.API.JWT
	if j.Issuer == "" {
		return []Finding{ok("", "no tokens of an issuer are accepted (api.jwt.issuer is empty)")}
	}
	from := cmp.Or(j.JWKSURL, j.JWKSFile)
	bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	usable, err := j.Examine(bounded)
	if err != nil {
		return fault(Fail, "api.jwt", "keys that can check signatures from "+from, oneLine(err), "correct api.jwt.jwks_url (the issuer's /.well-known/openid-configuration has it as jwks_uri) and ca_file, and let firewalls pass it: without keys every token is refused")
	}
	return []Finding{ok("", "%d keys from %s", usable, from)}
}
