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
	// HTTP is the address of the OpenAI-style REST surface; empty opens none.
	HTTP string `yaml:"http"`
	// GRPC is the address of the gRPC services; empty opens none.
	GRPC string `yaml:"grpc"`
	// Admin is the address of health, metrics, profiles and the console; empty opens none.
	Admin string `yaml:"admin"`
	// Hosts are names, beside localhost, by which requests may ask for an HTTP or admin address of the
	// loopback; "*" allows all. Web pages could else reach the router under names of their own.
	Hosts []string `yaml:"hosts"`
	// TLSCert and TLSKey name PEM files; with both, HTTP and GRPC speak TLS. They are read again when
	// they change.
	TLSCert string `yaml:"tls_cert"`
	TLSKey  string `yaml:"tls_key"`
	// AdminTLS has the admin address speak TLS too: with AdminTLSCert and AdminTLSKey, or with TLSCert and TLSKey where those
	// are empty.
	AdminTLS     bool   `yaml:"admin_tls"`
	AdminTLSCert string `yaml:"admin_tls_cert"`
	AdminTLSKey  string `yaml:"admin_tls_key"`
	// ClientCA names a PEM file with the certificates that client certificates are checked with, at each address that speaks
	// TLS; api.certificates gives their tenants. It is read again when it changes. Empty: clients show no certificates.
	ClientCA string `yaml:"client_ca"`
	// ClientAuth is optional (a certificate that is shown must be good) or required, at HTTP and GRPC.
	ClientAuth string `yaml:"client_auth"`
	// AdminClientAuth is the same at Admin, where probes and scrapers may have no certificate.
	AdminClientAuth string `yaml:"admin_client_auth"`
	// ReadHeaderTimeout bounds the wait for a request's head, IdleTimeout the life of a connection
	// without a request.
	ReadHeaderTimeout time.Duration `yaml:"read_header_timeout"`
	IdleTimeout       time.Duration `yaml:"idle_timeout"`
	// MaxHeaderBytes bounds a request's head.
	MaxHeaderBytes int `yaml:"max_header_bytes"`
	// MaxStreams bounds the requests of one HTTP/2 or gRPC connection at once.
	MaxStreams int `yaml:"max_streams"`
	// MaxConnections bounds the connections of each of the three doors; further ones wait to be accepted.
	// Zero: a quarter of the files that the process may open, so that as many are left for replicas.
	MaxConnections int `yaml:"max_connections"`
	// RawSockets reads from replicas and writes to clients with system calls that Go's scheduler does not know of, on
	// Linux: a busy router then wakes fewer threads. Turn it off to rule these calls out when you look for a fault.
	RawSockets bool `yaml:"raw_sockets"`
	// DrainDelay is the time between saying not ready and not accepting, so that balancers notice.
	DrainDelay time.Duration `yaml:"drain_delay"`
	// DrainTimeout bounds how long streams may go on after that.
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
