package members_test

import (
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/peers/members"
	"github.com/kvpilot/kvpilot/server/peers/refusals"
)

func TestAnnouncementsThatCannotBeTrueAreRefused(t *testing.T) {
	own := netip.MustParseAddrPort("10.0.0.1:7946")
	good := members.Member{ID: "0000000b", Name: "b", Address: "10.0.0.2:7947", WireMajor: 1, Started: time.Now()}
	node := func(change func(*members.Member, *memberlist.Node)) *memberlist.Node {
		m, n := good, &memberlist.Node{Name: good.ID, Addr: net.IPv4(10, 0, 0, 2), Port: 7946}
		change(&m, n)
		if n.Meta == nil {
			meta, err := members.Encode(m)
			if err != nil {
				t.Fatal(err)
			}
			n.Meta = meta
		}
		return n
	}
	for name, c := range map[string]struct {
		change func(*members.Member, *memberlist.Node)
		age    time.Duration
		want   string // in the log; empty: admitted
	}{
		"as it is":                         {func(*members.Member, *memberlist.Node) {}, time.Hour, ""},
		"of another version":               {func(m *members.Member, _ *memberlist.Node) { m.WireMajor = 9 }, time.Hour, ""},
		"the name of another":              {func(_ *members.Member, n *memberlist.Node) { n.Name = "0000000c" }, time.Hour, "reason=identity"},
		"a name that is no id":             {func(m *members.Member, n *memberlist.Node) { m.ID, n.Name = "router", "router" }, time.Hour, "reason=identity"},
		"no metadata":                      {func(_ *members.Member, n *memberlist.Node) { n.Meta = []byte{} }, time.Hour, "reason=identity"},
		"garbage":                          {func(_ *members.Member, n *memberlist.Node) { n.Meta = []byte("garbage") }, time.Hour, "reason=malformed"},
		"no address":                       {func(m *members.Member, _ *memberlist.Node) { m.Address = "" }, time.Hour, "reason=malformed"},
		"an address that is a name":        {func(m *members.Member, _ *memberlist.Node) { m.Address = "router:1" }, time.Hour, "reason=malformed"},
		"no address in particular":         {func(m *members.Member, _ *memberlist.Node) { m.Address = "0.0.0.0:7947" }, time.Hour, "reason=malformed"},
		"gossip from nowhere":              {func(_ *members.Member, n *memberlist.Node) { n.Addr = net.IPv4zero }, time.Hour, "reason=malformed"},
		"this router's gossip address":     {func(_ *members.Member, n *memberlist.Node) { n.Addr = net.IPv4(10, 0, 0, 1) }, time.Hour, "reason=address"},
		"this router's address":            {func(m *members.Member, _ *memberlist.Node) { m.Address = "10.0.0.1:7947" }, time.Hour, "reason=address"},
		"an earlier life of this router's": {func(_ *members.Member, n *memberlist.Node) { n.Addr = net.IPv4(10, 0, 0, 1) }, time.Second, "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			var text log
			out := slog.New(slog.NewTextHandler(&text, nil))
			m := members.New(members.Config{Listen: own.String()}, members.Params{ID: "0000000a", Scope: scope.Logged(out), Refused: refusals.New(scope.Logged(out))})
			err := members.Announce(m, c.age, own, node(c.change))
			switch {
			case c.want == "" && (err != nil || text.String() != ""):
				t.Errorf("error %v, log %s", err, text.String())
			case c.want == "nothing" && (err == nil || text.String() != ""):
				t.Errorf("error %v, log %s; want a refusal without a word", err, text.String())
			case c.want != "" && c.want != "nothing" && (err == nil || !strings.Contains(text.String(), c.want)):
				t.Errorf("error %v, log %s, want %s", err, text.String(), c.want)
			}
		})
	}
	good.Name = strings.Repeat("n", 600)
	if _, err := members.Encode(good); err == nil {
		t.Error("metadata that is too long is no error")
	}
}

// A router of wire version 1 announced itself with these bytes, of which the last field was a number. It is a stranger whose start is not known.
func TestTheAnnouncementOfWireVersion1IsRead(t *testing.T) {
	meta := []byte("\x0a\x080000000b\x12\x01b\x1a\x0d10.0.0.2:7947\x20\x01\x28\x01\x30\x95\x9a\xef\xb0\xce\x33")
	m, err := members.Decode(&memberlist.Node{Name: "0000000b", Addr: net.IPv4(10, 0, 0, 2), Port: 7946, Meta: meta})
	if err != nil {
		t.Fatal(err)
	}
	if m.ID != "0000000b" || m.Name != "b" || m.Address != "10.0.0.2:7947" || m.WireMajor != 1 || m.WireMinor != 1 || !m.Started.IsZero() {
		t.Errorf("read %+v", m)
	}
}
