package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"time"
)

// Listen says where the router is reached and how it leaves.
type Listen struct {
	// HTTP is the address of the OpenAI-style REST surface. Empty: no such surface.
	HTTP string `yaml:"http"`
	// GRPC is the address of the gRPC services. Empty: no such surface.
	GRPC string `yaml:"grpc"`
	// Admin is the address of health, metrics, profiles and the console. Empty: no such surface.
	Admin string `yaml:"admin"`
	// Hosts lists the names, besides localhost, that the Host header may have at an HTTP or admin address of the
	// loopback; "*" allows all. This stops web pages from reaching the router under names of their own.
	Hosts []string `yaml:"hosts"`
	// TLSCert names a PEM file with the certificate of the HTTP and gRPC addresses, which use TLS when it and tls_key
	// are set. It is read again when it changes.
	TLSCert string `yaml:"tls_cert"`
	// TLSKey names a PEM file with the key of tls_cert. It is read again when it changes.
	TLSKey string `yaml:"tls_key"`
	// AdminTLS makes the admin address use TLS, with admin_tls_cert and admin_tls_key, or with tls_cert and tls_key
	// where those are empty.
	AdminTLS bool `yaml:"admin_tls"`
	// AdminTLSCert names a PEM file with the certificate of the admin address. Empty: tls_cert.
	AdminTLSCert string `yaml:"admin_tls_cert"`
	// AdminTLSKey names a PEM file with the key of admin_tls_cert. Empty: tls_key.
	AdminTLSKey string `yaml:"admin_tls_key"`
	// ClientCA names a PEM file with the certificate authorities of client certificates, at each address that uses
	// TLS; api.certificates maps them to tenants. It is read again when it changes. Empty: client certificates are not
	// requested.
	ClientCA string `yaml:"client_ca"`
	// ClientAuth is optional (a client certificate must be valid if there is one) or required, for HTTP and gRPC.
	ClientAuth string `yaml:"client_auth"`
	// AdminClientAuth is client_auth for the admin address, where probes and scrapers may have no certificate.
	AdminClientAuth string `yaml:"admin_client_auth"`
	// ReadHeaderTimeout limits the time to read a request's header.
	ReadHeaderTimeout time.Duration `yaml:"read_header_timeout"`
	// IdleTimeout closes client connections that have no request for this long.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// MaxHeaderBytes limits the size of a request's header.
	MaxHeaderBytes int `yaml:"max_header_bytes"`
	// MaxStreams limits the concurrent requests of one HTTP/2 or gRPC connection.
	MaxStreams int `yaml:"max_streams"`
	// MaxConnections limits the connections of each of the three addresses; further ones wait to be accepted. Zero: a
	// quarter of the files that the process may open, which leaves as many for replicas.
	MaxConnections int `yaml:"max_connections"`
	// RawSockets reads from replicas and writes to clients with system calls that bypass Go's scheduler, on Linux, so
	// that a busy router wakes fewer threads. Turn it off to rule these calls out when you look for a fault.
	RawSockets bool `yaml:"raw_sockets"`
	// DrainDelay is the time between reporting not ready and closing the listeners, in which load balancers can react.
	DrainDelay time.Duration `yaml:"drain_delay"`
	// DrainTimeout limits how long streams may continue after that.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
}

// DefaultListen serves REST on 8080, gRPC on 9090 and the admin surface on 9091 of the loopback.
func DefaultListen() Listen {
	return Listen{
		HTTP: "127.0.0.1:8080", GRPC: "127.0.0.1:9090", Admin: "127.0.0.1:9091",
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, MaxStreams: 256, RawSockets: true,
		DrainTimeout: 30 * time.Second, ClientAuth: AuthOptional, AdminClientAuth: AuthOptional,
	}
}

// Validate reports every bad field at once.
func (l Listen) Validate() error {
	var errs []error
	for name, address := range map[string]string{"http": l.HTTP, "grpc": l.GRPC, "admin": l.Admin} {
		if address == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			errs = append(errs, fmt.Errorf("%s: %q is not of the form host:port", name, address))
		}
	}
	if l.HTTP == "" && l.GRPC == "" {
		errs = append(errs, errors.New("http: http and grpc must not both be empty"))
	}
	errs = append(errs, l.checkTLS()...)
	for name, d := range map[string]time.Duration{"read_header_timeout": l.ReadHeaderTimeout, "idle_timeout": l.IdleTimeout} {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("%s: must be positive", name))
		}
	}
	if l.DrainDelay < 0 || l.DrainTimeout < 0 {
		errs = append(errs, errors.New("drain_timeout: drain_delay and drain_timeout must not be negative"))
	}
	if l.MaxHeaderBytes < 4<<10 || l.MaxHeaderBytes > math.MaxUint32 {
		errs = append(errs, errors.New("max_header_bytes: must be from 4096 to 4294967295"))
	}
	if l.MaxStreams < 1 || l.MaxStreams > math.MaxInt32 {
		errs = append(errs, errors.New("max_streams: must be from 1 to 2147483647"))
	}
	if l.MaxConnections < 0 {
		errs = append(errs, errors.New("max_connections: must not be negative"))
	}
	return errors.Join(errs...)
}

// The values of ClientAuth.
const (
	AuthOptional = "optional"
	AuthRequired = "required"
)

func (l Listen) checkTLS() (errs []error) {
	if (l.TLSCert == "") != (l.TLSKey == "") {
		errs = append(errs, errors.New("tls_cert: tls_cert and tls_key must be set together"))
	}
	if (l.AdminTLSCert == "") != (l.AdminTLSKey == "") {
		errs = append(errs, errors.New("admin_tls_cert: admin_tls_cert and admin_tls_key must be set together"))
	}
	if l.AdminTLS && l.TLSCert == "" && l.AdminTLSCert == "" {
		errs = append(errs, errors.New("admin_tls: there is no certificate: set admin_tls_cert or tls_cert"))
	}
	if l.AdminTLSCert != "" && !l.AdminTLS {
		errs = append(errs, errors.New("admin_tls_cert: has no effect unless admin_tls is set"))
	}
	if l.ClientCA != "" && l.TLSCert == "" && !l.AdminTLS {
		errs = append(errs, errors.New("client_ca: no address uses TLS: set tls_cert or admin_tls"))
	}
	for name, value := range map[string]string{"client_auth": l.ClientAuth, "admin_client_auth": l.AdminClientAuth} {
		if value != AuthOptional && value != AuthRequired {
			errs = append(errs, fmt.Errorf("%s: %q must be optional or required", name, value))
		}
		if value == AuthRequired && l.ClientCA == "" {
			errs = append(errs, fmt.Errorf("%s: required needs client_ca", name))
		}
	}
	return errs
}
