package config_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/secret"
)

func TestSettingsInForce(t *testing.T) {
	c := config.Default()
	if list := config.InForce(c); len(list) > 0 {
		t.Errorf("of the defaults: %v", list)
	}
	c.Gateway.BodyTimeout = 7 * time.Second
	c.Router.TenantSaltSecret = secret.New("very-secret-salt-value")
	c.Router.SessionHeader = strings.Repeat("x", 500)
	list := config.InForce(c)
	if len(list) != 3 || !slices.Contains(list, "gateway.body_timeout=7s") || strings.Contains(strings.Join(list, " "), "very-secret") || len(list[1]) > 300 {
		t.Errorf("InForce() = %q", list)
	}
	c.Chooser.Models = nil
	for i := range 300 {
		c.Gateway.AllowOrigins = append(c.Gateway.AllowOrigins, "https://"+strconv.Itoa(i))
		c.Registry.Aliases = with(c.Registry.Aliases, strconv.Itoa(i))
	}
	if list := config.InForce(c); len(list) != 101 || !strings.HasSuffix(list[100], " more") {
		t.Errorf("%d settings: %q", len(list), list[len(list)-1])
	}
}

func with(m map[string]string, name string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[name] = "m"
	return m
}
