package config

import (
	"errors"
	"math"
	"net"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/check"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

// Listen says where the router is reached and how it leaves.
type Listen struct {
	// HTTP is the address of the OpenAI-style REST surface. Empty: no such surface.
	HTTP string `yaml:"http"`
	// GRPC is the address of the gRPC services. Empty: no such surface.
	GRPC string `yaml:"grpc"`
	// Admin is the address of health, metrics, profiles and the console. Empty: no such surface.
	Admin string `yaml:"admin"`
	// Hosts lists the names, besides localhost, that the Host header may have at a loopback address; "*" allows all. This stops web pages
	// that rebind names.
	Hosts []string `yaml:"hosts"`
	// TLSCert names a PEM file with the certificate of the HTTP and gRPC addresses; with tls_key it turns TLS on. It is read again when
	// it changes.
	TLSCert string `yaml:"tls_cert"`
	// TLSKey names a PEM file with the key of tls_cert. It is read again when it changes.
	TLSKey string `yaml:"tls_key"`
	// AdminTLS makes the admin address use TLS.
	AdminTLS bool `yaml:"admin_tls"`
	// AdminTLSCert names a PEM file with the certificate of the admin address. Empty: tls_cert.
	AdminTLSCert string `yaml:"admin_tls_cert"`
	// AdminTLSKey names a PEM file with the key of admin_tls_cert. Empty: tls_key.
	AdminTLSKey string `yaml:"admin_tls_key"`
	// ClientCA names a PEM file with the authorities of client certificates, at each address that uses TLS (see api.certificates). It is
	// read again when it changes. Empty: none are requested.
	ClientCA string `yaml:"client_ca"`
	// ClientAuth says whether HTTP and gRPC clients need a certificate: optional (a given one must be valid) or required.
	ClientAuth string `yaml:"client_auth"`
	// AdminClientAuth says the same for the admin address.
	AdminClientAuth string `yaml:"admin_client_auth"`
	// ReadHeaderTimeout limits the time to read a request's header.
	ReadHeaderTimeout time.Duration `yaml:"read_header_timeout"`
	// IdleTimeout closes client connections that have no request for this long.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// MaxHeaderBytes limits the size of a request's header.
	MaxHeaderBytes quantity.Bytes `yaml:"max_header_bytes"`
	// MaxStreams limits the concurrent requests of one HTTP/2 or gRPC connection.
	MaxStreams int `yaml:"max_streams"`
	// MaxConnections limits the connections of each of the three addresses. At the limit, idle ones are closed for new ones; while all
	// have requests, new ones wait. Zero: a quarter of the files that the process may open. All together take at most half of these
	// files.
	MaxConnections int `yaml:"max_connections"`
	// RawSockets reads and writes with system calls that bypass Go's scheduler, on Linux, so that a busy router wakes fewer threads. Turn
	// it off only to find a fault.
	RawSockets bool `yaml:"raw_sockets"`
	// StartWait limits how long connections are queued after a start, until every known replica has answered or failed a probe. Zero:
	// requests are served at once and may get a 503.
	StartWait time.Duration `yaml:"start_wait"`
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
		StartWait: 2 * time.Second, DrainTimeout: 30 * time.Second, ClientAuth: AuthOptional, AdminClientAuth: AuthOptional,
	}
}

// Validate reports every invalid field at once.
func (l Listen) Validate() error {
	return errors.Join(
		checkAddress("http", l.HTTP), checkAddress("grpc", l.GRPC), checkAddress("admin", l.Admin),
		check.That(l.HTTP != "" || l.GRPC != "", "http", "http and grpc must not both be empty"),
		l.checkApart(),
		l.checkTLS(),
		check.Positive("read_header_timeout", l.ReadHeaderTimeout),
		check.Positive("idle_timeout", l.IdleTimeout),
		check.AtLeast("start_wait", l.StartWait, 0),
		check.AtLeast("drain_delay", l.DrainDelay, 0),
		check.AtLeast("drain_timeout", l.DrainTimeout, 0),
		check.Between("max_header_bytes", l.MaxHeaderBytes, 4<<10, math.MaxUint32),
		check.Between("max_streams", l.MaxStreams, 1, math.MaxInt32),
		check.AtLeast("max_connections", l.MaxConnections, 0),
	)
}

func checkAddress(setting, address string) error {
	if address == "" {
		return nil
	}
	return check.Address(setting, address)
}

// checkApart reports two settings that name one address, which only one of them could open.
func (l Listen) checkApart() error {
	var errs []error
	taken := map[string]string{}
	for _, at := range [...]struct{ setting, address string }{{"http", l.HTTP}, {"grpc", l.GRPC}, {"admin", l.Admin}} {
		if _, port, err := net.SplitHostPort(at.address); err != nil || port == "0" {
			continue
		}
		other, double := taken[at.address]
		errs = append(errs, check.That(!double, at.setting, "%s is the address of listen.%s; each needs a port of its own", at.address, other))
		taken[at.address] = at.setting
	}
	return errors.Join(errs...)
}

// The values of ClientAuth and AdminClientAuth.
const (
	AuthOptional = "optional"
	AuthRequired = "required"
)

func (l Listen) checkTLS() error {
	return errors.Join(
		check.That((l.TLSCert == "") == (l.TLSKey == ""), "tls_cert", "tls_cert and tls_key must be set together"),
		check.That((l.AdminTLSCert == "") == (l.AdminTLSKey == ""), "admin_tls_cert", "admin_tls_cert and admin_tls_key must be set together"),
		check.That(!l.AdminTLS || l.TLSCert != "" || l.AdminTLSCert != "", "admin_tls", "there is no certificate: set admin_tls_cert or tls_cert"),
		check.That(l.AdminTLSCert == "" || l.AdminTLS, "admin_tls_cert", "has no effect unless admin_tls is set"),
		check.That(l.ClientCA == "" || l.TLSCert != "" || l.AdminTLS, "client_ca", "no address uses TLS: set tls_cert or admin_tls"),
		l.checkAuth("client_auth", l.ClientAuth),
		l.checkAuth("admin_client_auth", l.AdminClientAuth),
	)
}

func (l Listen) checkAuth(setting, value string) error {
	if err := check.OneOf(setting, value, AuthOptional, AuthRequired); err != nil {
		return err
	}
	return check.That(value != AuthRequired || l.ClientCA != "", setting, "required needs client_ca")
}
