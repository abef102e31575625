package members

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/kit/check"
	"github.com/kvpilot/kvpilot/server/peers/identity"
)

// Config has an operator's settings of the fleet of routers.
type Config struct {
	// Name is the router's name for operators; host name if empty.
	Name string `yaml:"name"`
	// Listen is the address, host:port, of the gossip between routers, over TCP and UDP. Empty: the router is alone and none of
	// these settings has an effect.
	Listen string `yaml:"listen"`
	// RPCListen is the address, host:port, at which the other routers reach this one. Empty: the host of listen and the port
	// after its port.
	RPCListen string `yaml:"rpc_listen"`
	// Join lists members, host:port each; a name stands for all its addresses, such as a headless Service's. The router itself may be
	// among them. Members that do not answer are tried again for ever.
	Join []string `yaml:"join"`
	// Key is the fleet's key, of at least 16 bytes ("openssl rand -base64 32"): routers with the same key trust each other.
	Key secret.String `yaml:"key"`
	// KeyFile names a file with the key, instead of key. Spaces around it are ignored.
	KeyFile string `yaml:"key_file"`
	// Advertise is the address that other routers use for this one, host or host:port, where it differs from listen; not a Service's or
	// load balancer's.
	Advertise string `yaml:"advertise"`
	// Patience is how long a pool's decider may leave a question without any answer; then this router decides alone. A request waits as
	// long, and a second at most, for the owner of its tenant's limits.
	Patience time.Duration `yaml:"patience"`
	// Grace is how long the bookings of a router that has disappeared remain.
	Grace time.Duration `yaml:"grace"`
}

// DefaultConfig is a router alone.
func DefaultConfig() Config { return Config{Patience: 50 * time.Millisecond, Grace: 3 * time.Second} }

// maxName leaves room in the gossip's metadata.
const maxName = 128

// maxPort is the highest port.
const maxPort = 65535

// Validate reports every invalid field at once.
func (c Config) Validate() error {
	return errors.Join(
		check.That(len(c.Name) <= maxName, "name", "must have at most %d bytes, not %d", maxName, len(c.Name)),
		check.Between("patience", c.Patience, time.Millisecond, time.Minute),
		check.Between("grace", c.Grace, 10*time.Millisecond, time.Hour),
		c.validateAddresses(),
		c.validateKey(),
	)
}

func (c Config) validateAddresses() error {
	if c.Listen == "" {
		return errors.Join(
			check.That(len(c.Join) == 0, "join", "has no effect unless fleet.listen is set"),
			check.That(c.RPCListen == "", "rpc_listen", "has no effect unless fleet.listen is set"),
			check.That(c.Advertise == "", "advertise", "has no effect unless fleet.listen is set"),
		)
	}
	_, port, err := splitAddress(c.Listen)
	errs := []error{check.That(err == nil, "listen", "must be host:port, not %q", c.Listen)}
	if c.RPCListen != "" {
		_, _, err := splitAddress(c.RPCListen)
		errs = append(errs, check.That(err == nil, "rpc_listen", "must be host:port, not %q", c.RPCListen))
	} else if err == nil {
		errs = append(errs, check.That(port > 0 && port < maxPort, "rpc_listen", "must be set when the port of listen is 0 or %d", maxPort))
	}
	for _, address := range c.Join {
		_, port, err := splitAddress(address)
		errs = append(errs, check.That(err == nil && port > 0, "join", "must list host:port, not %q", address))
	}
	if c.Advertise != "" {
		host, _, err := splitAdvertised(c.Advertise)
		errs = append(errs, check.That(err == nil && host != "", "advertise", "must be host or host:port, not %q", c.Advertise))
		ip := net.ParseIP(host)
		errs = append(errs, check.That(ip == nil || !ip.IsUnspecified(), "advertise", "must be an address that others can reach, not %q", c.Advertise))
	}
	return errors.Join(errs...)
}

func (c Config) validateKey() error {
	key := len(c.Key.Reveal())
	return errors.Join(
		check.That(c.Key.IsEmpty() || c.KeyFile == "", "key_file", "key and key_file must not both be set"),
		check.That(c.Listen == "" || !c.Key.IsEmpty() || c.KeyFile != "", "key", "must be set, or key_file, when fleet.listen is"),
		check.That(c.Key.IsEmpty() || key >= identity.MinKey, "key", "must have at least %d bytes, not %d", identity.MinKey, key),
	)
}

// Secret is the fleet's key, which may be in a file.
func (c Config) Secret() ([]byte, error) {
	if c.KeyFile == "" {
		return []byte(c.Key.Reveal()), nil
	}
	text, err := os.ReadFile(c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("fleet.key_file: %w", err)
	}
	key := bytes.TrimSpace(text)
	if err := check.That(len(key) >= identity.MinKey, "fleet.key_file", "%s must have at least %d bytes, not %d", c.KeyFile, identity.MinKey, len(key)); err != nil {
		return nil, err
	}
	return key, nil
}

// RPCAddress is where the routers' services listen.
func (c Config) RPCAddress() string {
	if c.RPCListen != "" {
		return c.RPCListen
	}
	host, port, err := splitAddress(c.Listen)
	if err != nil {
		return "" // Validate refuses it
	}
	return net.JoinHostPort(host, strconv.Itoa(port+1))
}

// splitAddress takes host:port apart.
func splitAddress(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return host, int(n), err
}

// splitAdvertised takes apart host:port or a host alone; then the port is 0.
func splitAdvertised(address string) (host string, port int, err error) {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return splitAddress(address)
	}
	if ip := net.ParseIP(address); ip != nil {
		return address, 0, nil
	}
	if _, _, err := net.SplitHostPort(address + ":0"); err != nil {
		return "", 0, err
	}
	return address, 0, nil
}
