package identity_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/credentials"

	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/peers/identity"
	"github.com/kvpilot/kvpilot/server/peers/refusals"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const fleetKey = "a key of sixteen bytes or more"

func newIdentity(t *testing.T, key, id string) *identity.Identity {
	t.Helper()
	i, err := identity.New([]byte(key), id)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// shake runs a handshake over a connection and returns both ends' errors and the log.
func shake(t *testing.T, a, b net.Conn, client, server func(*refusals.Log) credentials.TransportCredentials) (text string, clientErr, serverErr error) {
	t.Helper()
	var out bytes.Buffer
	to := refusals.New(scope.Logged(slog.New(slog.NewTextHandler(&out, nil))))
	defer a.Close()
	defer b.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _, serverErr = server(to).ServerHandshake(b)
		b.Close()
	})
	conn, _, clientErr := client(to).ClientHandshake(t.Context(), "any", a)
	if clientErr == nil {
		// In TLS 1.3 the client learns of a refusal with its first read.
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = conn.Read(make([]byte, 1))
	}
	a.Close()
	wg.Wait()
	return out.String(), clientErr, serverErr
}

func as(i *identity.Identity) func(*refusals.Log) credentials.TransportCredentials { return i.Server }

func to(i *identity.Identity, id string) func(*refusals.Log) credentials.TransportCredentials {
	return func(l *refusals.Log) credentials.TransportCredentials { return i.Client(id, l).Clone() }
}

func TestMembersOfOneFleetTrustEachOther(t *testing.T) {
	a, b := newIdentity(t, fleetKey, "0000000a"), newIdentity(t, fleetKey, "0000000b")
	if !bytes.Equal(a.GossipKey(), b.GossipKey()) || len(a.GossipKey()) != 32 {
		t.Errorf("gossip keys %x and %x, want equal ones of 32 bytes", a.GossipKey(), b.GossipKey())
	}
	one, other := tcpPair(t)
	text, clientErr, serverErr := shake(t, one, other, to(a, "0000000b"), as(b))
	if clientErr != nil || serverErr != nil || text != "" {
		t.Errorf("client %v, server %v, log %q", clientErr, serverErr, text)
	}
}

func TestRefusals(t *testing.T) {
	a, b := newIdentity(t, fleetKey, "0000000a"), newIdentity(t, fleetKey, "0000000b")
	stranger := newIdentity(t, fleetKey+"!", "0000000c")
	if bytes.Equal(a.GossipKey(), stranger.GossipKey()) {
		t.Error("two keys have one gossip key")
	}
	for _, c := range []struct {
		name           string
		client, server func(*refusals.Log) credentials.TransportCredentials
		want           []string
	}{
		{"another key", to(stranger, "0000000b"), as(b), []string{"reason=key", "fleet.key"}},
		{"another router", to(a, "0000000d"), as(b), []string{"reason=address", "expected=0000000d", "reached=0000000b", "fleet.advertise"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			one, other := tcpPair(t)
			text, clientErr, _ := shake(t, one, other, c.client, c.server)
			if clientErr == nil {
				t.Error("the client was content")
			}
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("log %q, want %q", text, want)
				}
			}
		})
	}
}

func TestAServerRefusesPlainText(t *testing.T) {
	var out bytes.Buffer
	server := newIdentity(t, fleetKey, "0000000a").Server(refusals.New(scope.Logged(slog.New(slog.NewTextHandler(&out, nil)))))
	a, b := tcpPair(t)
	if _, err := a.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := server.ServerHandshake(b); err == nil || !strings.Contains(out.String(), "reason=malformed") {
		t.Errorf("error %v, log %q", err, out.String())
	}
}

func tcpPair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})
	return client, server
}

func TestCertificatesAreRenewedAndClocksMayDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := newIdentity(t, fleetKey, "0000000a")
		try := func(peer *identity.Identity) (string, error) {
			one, other := net.Pipe()
			text, clientErr, serverErr := shake(t, one, other, to(late, "0000000b"), as(peer))
			if clientErr == nil {
				clientErr = serverErr
			}
			return text, clientErr
		}
		for range 5 { // one process, weeks
			if text, err := try(newIdentity(t, fleetKey, "0000000b")); err != nil {
				t.Fatalf("%v %s", err, text)
			}
			time.Sleep(100 * time.Hour)
		}
		old := newIdentity(t, fleetKey, "0000000b")
		if _, err := try(old); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Hour)
		if text, err := try(old); err != nil { // the same certificate
			t.Errorf("%v %s", err, text)
		}
	})
}

func TestKeysAndIDsAreChecked(t *testing.T) {
	if _, err := identity.New([]byte("short"), "0000000a"); err == nil || !strings.Contains(err.Error(), "16 bytes") {
		t.Errorf("error %v", err)
	}
	for _, id := range []string{"", "a", "0000000G", "0000000A", "0000000aa"} {
		if _, err := identity.New([]byte(fleetKey), id); err == nil || identity.IsID(id) {
			t.Errorf("%q is accepted as an id", id)
		}
	}
	a, b := identity.NewID(), identity.NewID()
	if a == b || !identity.IsID(a) || !identity.IsID(b) {
		t.Errorf("ids %q and %q", a, b)
	}
	if id := identity.PeerID(context.Background()); id != "" {
		t.Errorf("PeerID() of no call is %q", id)
	}
}
