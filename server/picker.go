package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/edge/extproc"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/observe/telemetry"
)

// picker is the endpoint picker: the surface that gateways ask for a replica.
type picker struct {
	server     *extproc.Server
	guard      *guard.Guard
	objectives *registry.Objectives
	rewrites   *registry.Rewrites
	// grpc serves gateways, health the probes at an address of their own.
	grpc, health *grpc.Server
}

// gatewayStreams bounds the requests of one connection: a gateway sends all its clients' requests over few.
const gatewayStreams = 64 << 10

// openPicker makes the endpoint picker, where it has an address or a listener.
func (s *surfaces) openPicker(c config.Config, t *telemetry.Telemetry, p *parts, given bool) error {
	if c.EPP.Listen == "" && !given {
		return nil
	}
	objectives, rewrites := registry.NewObjectives(c.Registry, p.part("epp")), registry.NewRewrites(c.Registry, p.part("epp"))
	server := extproc.New(c.EPP, extproc.Params{
		Router: p.router, Senders: s.api, Fleet: p.ranks.Registry, Ledger: s.ledger, TenantHeader: c.API.TenantHeader,
		MaxBodyBytes: int64(c.Gateway.MaxBodyBytes), Times: s.gateway, Objectives: objectives, Rewrites: rewrites,
		Scope: p.part("epp"), Propagator: t.Propagator(),
	})
	g := guard.New(guard.Limits{
		Message: max(int(c.Gateway.MaxBodyBytes), int(c.EPP.MaxBodyBytes)) + messageFrame,
		Streams: gatewayStreams, HeaderBytes: uint32(c.Listen.MaxHeaderBytes),
		Handshake: c.Listen.ReadHeaderTimeout, Idle: c.Listen.IdleTimeout,
		Receive: c.Gateway.BodyTimeout, Stall: c.Gateway.StallTimeout,
	}, guard.Params{Ledger: s.ledger, Senders: server, Scope: p.part("epp")})
	options := g.Options()
	secure, err := pickerTLS(c)
	if err != nil {
		return err
	}
	if secure != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(secure)))
	}
	s.picker = &picker{server: server, guard: g, objectives: objectives, rewrites: rewrites, grpc: grpc.NewServer(options...), health: grpc.NewServer(g.Options()...)}
	guarded := g.Registrar(s.picker.grpc)
	extprocv3.RegisterExternalProcessorServer(guarded, server)
	healthpb.RegisterHealthServer(guarded, s.health)
	healthpb.RegisterHealthServer(g.Registrar(s.picker.health), s.health)
	return nil
}

// setHealth reports the states that gateways and their probes ask for.
func (*picker) setHealth(to *healthService, state healthpb.HealthCheckResponse_ServingStatus) {
	to.SetServingStatus(extprocv3.ExternalProcessor_ServiceDesc.ServiceName, state)
	to.SetServingStatus("readiness", state)
	to.SetServingStatus(serviceLiveness, healthpb.HealthCheckResponse_SERVING)
}

// pickerTLS is the TLS of the endpoint picker's address; nil when it speaks plain text.
func pickerTLS(c config.Config) (*tls.Config, error) {
	switch c.EPP.TLS {
	case extproc.TLSOff:
		return nil, nil
	case extproc.TLSFiles:
		cert, key, setting := c.EPP.TLSCert, c.EPP.TLSKey, "epp.tls_cert"
		if cert == "" {
			cert, key, setting = c.Listen.TLSCert, c.Listen.TLSKey, "listen.tls_cert"
		}
		if cert == "" {
			return nil, fmt.Errorf("epp.tls: files needs epp.tls_cert and epp.tls_key, or listen.tls_cert and listen.tls_key")
		}
		return listenerTLS(setting, cert, key, "", "")
	}
	pair, err := selfSigned()
	if err != nil {
		return nil, fmt.Errorf("epp.tls: make a certificate: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{pair}}, nil
}

// selfSignedLife is longer than any process runs.
const selfSignedLife = 10 * 365 * 24 * time.Hour

// selfSigned makes a certificate for clients that verify none.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "kvpilot"}, DNSNames: []string{"kvpilot", "localhost"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSignedLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
