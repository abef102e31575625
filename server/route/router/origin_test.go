package router_test

import (
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/route/router"
)

func TestIDsBeginWithTheRoutersOwn(t *testing.T) {
	for _, origin := range []string{"", "0123abcd"} {
		a, b := router.NewID(origin), router.NewID(origin)
		if a == b || len(a) != 24 || len(b) != 24 || !strings.HasPrefix(a, origin) || !strings.HasPrefix(b, origin) {
			t.Errorf("ids %q and %q of origin %q", a, b, origin)
		}
	}
}
