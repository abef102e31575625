package tlspeer

import (
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/kvpilot/kvpilot/server/kit/check"
)

// Config has the settings of an operator.
type Config struct {
	// CAFile names a PEM file with the authorities of replicas' certificates; empty: the system's. It is read again when it changes.
	CAFile string `yaml:"ca_file"`
	// CertFile names a PEM file with the router's certificate for replicas that ask for one. It is read again when it changes.
	CertFile string `yaml:"cert_file"`
	// KeyFile names a PEM file with the certificate's key. It is read again when it changes.
	KeyFile string `yaml:"key_file"`
	// ServerName is the name that replicas' certificates must have; empty takes the host of the URL.
	ServerName string `yaml:"server_name"`
	// MinVersion is the lowest version of TLS that is spoken: 1.2 or 1.3. Empty is 1.2.
	MinVersion string `yaml:"min_version"`
}

// Validate reports every bad field at once.
func (c Config) Validate() error {
	_, err := c.version()
	return errors.Join(
		check.That((c.CertFile == "") == (c.KeyFile == ""), "cert_file", "cert_file and key_file must be set together"),
		err,
	)
}

func (c Config) version() (uint16, error) {
	switch c.MinVersion {
	case "", "1.2":
		return tls.VersionTLS12, nil
	case "1.3":
		return tls.VersionTLS13, nil
	}
	return 0, fmt.Errorf("min_version: must be 1.2 or 1.3, not %q", c.MinVersion)
}

// Or takes unset fields from d; certificate and key belong together.
func (c Config) Or(d Config) Config {
	if c.CAFile == "" {
		c.CAFile = d.CAFile
	}
	if c.CertFile == "" && c.KeyFile == "" {
		c.CertFile, c.KeyFile = d.CertFile, d.KeyFile
	}
	if c.ServerName == "" {
		c.ServerName = d.ServerName
	}
	if c.MinVersion == "" {
		c.MinVersion = d.MinVersion
	}
	return c
}
