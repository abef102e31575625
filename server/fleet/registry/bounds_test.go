package registry_test

import (
	"errors"
	"testing"

	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// Item 7: what callers register is bounded.
func TestRegistrationReachesOnlyAllowedNetworks(t *testing.T) {
	f := newFleet()
	c := listed()
	c.Registration.Networks = []string{"10.0.0.0/8", "fd00::/8"}
	c.Registration.MaxRanks = 6
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	virtual(t, f, c, registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		at := func(url, endpoint string) registry.Spec {
			return registry.Spec{ID: "x", URL: url, Events: registry.EventsSpec{Endpoint: endpoint, Replay: "none"}}
		}
		for name, s := range map[string]registry.Spec{
			"cloud metadata":       at("http://169.254.169.254", "none"),
			"another network":      at("http://192.168.0.1:8000", "none"),
			"a name":               at("http://localhost:8000", "none"),
			"events elsewhere":     at("http://10.0.0.7:8000", "tcp://192.168.0.1:5557"),
			"a file":               at("http://10.0.0.7:8000", "ipc:///tmp/socket"),
			"mapped":               at("http://[::ffff:192.168.0.1]:8000", "none"),
			"multicast":            at("http://224.0.0.1:8000", "none"),
			"link-local with zone": at("http://[fe80::1%25eth0]:8000", "none"),
		} {
			if _, _, err := r.Register(t.Context(), s, 0); !errors.Is(err, registry.ErrForbidden) {
				t.Errorf("%s: %v, want ErrForbidden", name, err)
			}
		}
		for name, s := range map[string]registry.Spec{"v4": at("http://10.0.0.7:8000", "tcp://10.0.0.7:5557"), "v6": at("http://[fd00::7]:8000", "tcp://{host}:5557")} {
			if _, _, err := r.Register(t.Context(), s, 0); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		big := at("http://10.0.0.8:8000", "none")
		big.ID, big.Ranks = "big", 6
		if _, _, err := r.Register(t.Context(), big, 0); !errors.Is(err, registry.ErrRanks) {
			t.Errorf("7 ranks of 6: %v", err)
		}
		big.Ranks = 5
		for range 2 { // again renews
			if _, _, err := r.Register(t.Context(), big, 0); err != nil {
				t.Errorf("6 ranks of 6: %v", err)
			}
		}
	})
	c.Registration.Networks = []string{"10.0.0.0"}
	if c.Validate() == nil {
		t.Error("a network without a length is taken")
	}
}
