package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/kvpilot/kvpilot/server/kit/ledger"
	"github.com/kvpilot/kvpilot/server/peers/refusals"
)

// Server returns the credentials of a server that admits members of the fleet only. Failed handshakes are recorded in to.
func (i *Identity) Server(to *refusals.Log) credentials.TransportCredentials {
	return &watched{credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.certificate() },
		ClientAuth:     tls.RequireAndVerifyClientCert, ClientCAs: i.pool,
	}), to, ""}
}

// Client returns the credentials of a client that means to reach the router with this id, and no other.
func (i *Identity) Client(id string, to *refusals.Log) credentials.TransportCredentials {
	return &watched{credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: i.pool, ServerName: id,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return i.certificate() },
	}), to, id}
}

// PeerID is the id in the certificate of the call's other end; empty when it has none.
func PeerID(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return ""
	}
	return info.State.PeerCertificates[0].Subject.CommonName
}

// watched records handshakes that fail.
type watched struct {
	credentials.TransportCredentials
	to     *refusals.Log
	expect string // the id that a client means to reach
}

// ServerHandshake implements credentials.TransportCredentials.
func (w *watched) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := w.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		w.record(conn.RemoteAddr(), err)
	} else {
		ledger.Unwrap(conn).Prove()
	}
	return secure, info, err
}

// ClientHandshake implements credentials.TransportCredentials.
func (w *watched) ClientHandshake(ctx context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := w.TransportCredentials.ClientHandshake(ctx, w.expect, conn)
	if err != nil {
		w.record(conn.RemoteAddr(), err)
	}
	return secure, info, err
}

// Clone implements credentials.TransportCredentials.
func (w *watched) Clone() credentials.TransportCredentials {
	return &watched{w.TransportCredentials.Clone(), w.to, w.expect}
}

// record says what is wrong with the other end. A connection that ends, as a health check's does, is no refusal.
func (w *watched) record(remote net.Addr, err error) {
	host, _, splitErr := net.SplitHostPort(remote.String())
	if splitErr != nil {
		host = remote.String()
	}
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var plain tls.RecordHeaderError
	var alert tls.AlertError
	switch {
	case errors.As(err, &name):
		w.to.Refuse(refusals.Address, host, "the address of a router leads to another one: fleet.advertise must be the router's own address, not that of a Service or load balancer",
			"expected", w.expect, "reached", strings.Join(name.Certificate.DNSNames, ","), "address", remote.String())
	case errors.As(err, &unknown):
		w.to.Refuse(refusals.Key, host, "a router has another key: fleet.key must be the same on all", "address", remote.String())
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		w.to.Refuse(refusals.Clock, host, "a router's certificate is not valid now: its clock and this one's differ by more than an hour", "address", remote.String(), "error", err)
	case errors.As(err, &plain), errors.As(err, &invalid), strings.Contains(err.Error(), "tls: client didn't provide a certificate"):
		w.to.Refuse(refusals.Malformed, host, "a connection to the routers' own address came from something else than a router", "address", remote.String(), "error", err)
	case errors.As(err, &alert), strings.Contains(err.Error(), "remote error: tls"):
		w.to.Refuse(refusals.Handshake, host, "a router rejected this one's certificate: it has another fleet.key, or reached this router by another's address, or their clocks differ by more than an hour",
			"address", remote.String(), "error", err)
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	}
}
