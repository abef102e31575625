package ledger_test

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/ledger"
)

const mib = 1 << 20

func open(l *ledger.Ledger, s ledger.Sender) *ledger.Account {
	a := new(ledger.Account)
	l.Open(a, s)
	return a
}

// fill charges steps of a MiB until one is refused, and returns how many were not.
func fill(t *testing.T, a *ledger.Account, k ledger.Kind) (taken int64, by string) {
	t.Helper()
	for {
		err := a.Take(k, mib)
		if full := (*ledger.Full)(nil); errors.As(err, &full) {
			return taken, full.By
		}
		if taken++; taken > 10_000 {
			t.Fatal("nothing bounds the charges")
		}
	}
}

func TestAPartyTakesHalfOfWhatIsFree(t *testing.T) {
	l := ledger.New(ledger.Config{Bytes: 120 * mib, Places: 80 * mib}, nil)
	a := open(l, ledger.Sender{Tenant: "a", Address: "10.0.0.1"})
	b := open(l, ledger.Sender{Tenant: "b", Address: "10.0.0.2"})
	second := open(l, ledger.Sender{Tenant: "a", Address: "10.0.0.3"})
	if got, by := fill(t, a, ledger.Body); got != 60 || by != "tenant" {
		t.Errorf("the first tenant holds %d MiB of 120 until the %s's share is used up, want 60", got, by)
	}
	if got, _ := fill(t, second, ledger.Answer); got != 0 {
		t.Errorf("over a second account and address it holds %d MiB more", got)
	}
	if got, _ := fill(t, b, ledger.Body); got != 30 {
		t.Errorf("the second tenant holds %d MiB, want 30", got)
	}
	if got, _ := fill(t, a, ledger.Stream); got != 40 {
		t.Errorf("of the other pot the first tenant holds %d MiB, want 40", got)
	}
	if a.Held(ledger.Body) != 60*mib || l.Held(ledger.Body) != 90*mib {
		t.Errorf("counted %d and %d bytes", a.Held(ledger.Body), l.Held(ledger.Body))
	}
	a.Close()
	a.Close()
	b.Close()
	for k := range ledger.Connection + 1 {
		if l.Held(k) != 0 {
			t.Errorf("%d bytes of %s are counted when all accounts are closed", l.Held(k), k)
		}
	}
	if got, _ := fill(t, b, ledger.Body); got != 60 {
		t.Errorf("afterwards the second tenant holds %d MiB, want 60", got)
	}
}

func TestAnAddressLeavesRoom(t *testing.T) {
	for name, c := range map[string]struct {
		sender func(i int) ledger.Sender
		most   int64
		by     string
	}{
		"of an open router": {func(int) ledger.Sender { return ledger.Sender{Open: true, Address: "10.0.0.1"} }, 60, "address"},
		"with many tenants": {func(i int) ledger.Sender {
			return ledger.Sender{Tenant: fmt.Sprint(i), Address: "10.0.0.1"}
		}, 90, "address"},
		"of IPv6, in one /64": {func(i int) ledger.Sender {
			return ledger.Sender{Open: true, Address: fmt.Sprintf("2001:db8::%d", i+1)}
		}, 60, "address"},
		"of unknown senders": {func(int) ledger.Sender {
			return ledger.Sender{Open: true, Unknown: true, Address: "10.0.0.1"}
		}, 40, "address"},
		"without credentials": {func(int) ledger.Sender { return ledger.Sender{Nameless: true, Address: "10.0.0.1"} }, 15, "nameless"},
		"addresses without credentials": {func(i int) ledger.Sender {
			return ledger.Sender{Nameless: true, Address: fmt.Sprintf("10.0.0.%d", i)}
		}, 15, "nameless"},
	} {
		l := ledger.New(ledger.Config{Bytes: 120 * mib, Places: mib}, nil)
		total, last := int64(0), ""
		for i := range 50 {
			got, by := fill(t, open(l, c.sender(i)), ledger.Body)
			if total += got; got > 0 || last == "" {
				last = by
			}
		}
		if total > c.most || total < c.most*9/10 {
			t.Errorf("an address %s holds %d MiB of 120, want %d", name, total, c.most)
		}
	}
}

func TestWhatArrivesTakesHalfOfWhatIsFree(t *testing.T) {
	l := ledger.New(ledger.Config{Bytes: 10 * mib, Places: mib}, nil)
	n := 0
	for l.Arrived(mib) {
		n++
	}
	if n != 5 {
		t.Errorf("%d MiB of 10 arrived within their share", n)
	}
	l.Passed(6 * mib)
	if l.Held(ledger.Body) != 0 {
		t.Errorf("%d bytes are counted when all were passed", l.Held(ledger.Body))
	}
}

func TestSlowHoldsEndWhenTheirRoomIsWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ledger.New(ledger.Config{Bytes: 100 * mib, Places: mib}, nil)
		hold := func(tenant string, bytes int64) (*ledger.Account, *ledger.Hold, *bool) {
			a, h, ended := open(l, ledger.Sender{Tenant: tenant, Address: tenant}), new(ledger.Hold), new(bool)
			if err := a.Take(ledger.Body, bytes); err != nil {
				t.Fatal(err)
			}
			a.Watch(h, ledger.Body, func() {
				*ended = true
				go a.Close() // as the handler does that sees its read end
			})
			return a, h, ended
		}
		_, _, slowEnded := hold("a", 30*mib)
		_, fast, fastEnded := hold("a", 15*mib)
		_, _, otherEnded := hold("b", 10*mib)
		next := open(l, ledger.Sender{Tenant: "a", Address: "x"})
		if err := next.TakeSoon(t.Context(), ledger.Body, 20*mib); err == nil || *slowEnded {
			t.Errorf("within the grace: %v, ended %t", err, *slowEnded)
		}
		time.Sleep(20 * time.Second)
		fast.Moved(15 * mib)
		if err := next.TakeSoon(t.Context(), ledger.Body, 20*mib); err != nil {
			t.Errorf("a charge that needs the room of a slow body: %v", err)
		}
		if !*slowEnded || *fastEnded || *otherEnded {
			t.Errorf("ended: the slow body %t, the fast one %t, another tenant's %t", *slowEnded, *fastEnded, *otherEnded)
		}
		began := time.Now()
		if err := next.TakeSoon(t.Context(), ledger.Body, 60*mib); err == nil {
			t.Error("a charge beyond every share succeeded")
		}
		if waited := time.Since(began); waited > 0 {
			t.Errorf("it waited %s, though nothing slow was left", waited)
		}
	})
}

func TestDoneHoldsAreNotEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ledger.New(ledger.Config{Bytes: 10 * mib, Places: mib}, nil)
		a, h := open(l, ledger.Sender{Tenant: "a"}), new(ledger.Hold)
		if err := a.Take(ledger.Body, 5*mib); err != nil {
			t.Fatal(err)
		}
		a.Watch(h, ledger.Body, func() { t.Error("a hold that is done was ended") })
		time.Sleep(time.Minute)
		h.Done()
		h.Done()
		if err := a.TakeSoon(t.Context(), ledger.Body, mib); err == nil || h.Evicted() {
			t.Errorf("%v, evicted %t", err, h.Evicted())
		}
	})
}

// listen opens a counted listener, and a function that dials it and returns the two ends.
func listen(t *testing.T, l *ledger.Ledger, c ledger.ListenerConfig) (dial func() (client net.Conn, server *ledger.Conn)) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	counted := l.Listener(inner, c)
	t.Cleanup(func() { counted.Close() })
	accepted := make(chan *ledger.Conn, 100)
	go func() {
		for {
			c, err := counted.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- ledger.Unwrap(c)
		}
	}()
	return func() (net.Conn, *ledger.Conn) {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		select {
		case own := <-accepted:
			t.Cleanup(func() { own.Close() })
			return c, own
		case <-time.After(10 * time.Second):
			t.Fatal("a connection is not accepted")
			return nil, nil
		}
	}
}

func TestIdleConnectionsMakeRoom(t *testing.T) {
	for name, c := range map[string]struct {
		config ledger.Config
		max    int
	}{
		"at the listener's bound": {ledger.Config{Bytes: mib, Places: 100 * mib}, 4},
		"at the files' bound":     {ledger.Config{Bytes: mib, Places: 100 * mib, Files: 4}, 100},
		"at the address's share":  {ledger.Config{Bytes: mib, Places: 12 << 10}, 100},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledger.New(c.config, nil)
			dial := listen(t, l, ledger.ListenerConfig{Max: c.max, Cost: 1 << 10})
			_, busy := dial()
			busy.Begin()
			_, used := dial()
			used.Begin()
			used.Prove()
			used.End()
			_, first := dial()
			_, second := dial()
			_, third := dial()
			if !first.Closed() || second.Closed() || used.Closed() || busy.Closed() || third.Closed() {
				t.Fatalf("closed: one that sent nothing %t, a newer one %t, a used one %t, a busy one %t, the new one %t, want the first only",
					first.Closed(), second.Closed(), used.Closed(), busy.Closed(), third.Closed())
			}
			_, fourth := dial()
			if !second.Closed() || fourth.Closed() || used.Closed() {
				t.Errorf("closed: the next that sent nothing %t, the new one %t, a used one %t", second.Closed(), fourth.Closed(), used.Closed())
			}
			fourth.Begin()
			third.Begin()
			if _, fifth := dial(); !used.Closed() || busy.Closed() || fifth.Closed() {
				t.Errorf("while all others are busy: the used one is closed %t, a busy one %t", used.Closed(), busy.Closed())
			}
		})
	}
}

func TestConnectionsOfPeersStay(t *testing.T) {
	l := ledger.New(ledger.Config{Bytes: mib, Places: mib}, nil)
	dial := listen(t, l, ledger.ListenerConfig{Max: 2, Cost: 1 << 10, Lasting: true})
	_, peer := dial()
	peer.Prove()
	for range 20 {
		dial()
	}
	if peer.Closed() {
		t.Error("the connection of a peer was closed for ones that have shown nothing")
	}
}

func TestAConnectionIsFoundByItsAddress(t *testing.T) {
	l := ledger.New(ledger.Config{Bytes: mib, Places: mib}, nil)
	client, server := listen(t, l, ledger.ListenerConfig{Max: 2, Cost: 1 << 10})()
	if ledger.ConnAt(server.RemoteAddr()) != server || server.RemoteAddr().String() != client.LocalAddr().String() || ledger.ConnAt(client.LocalAddr()) != nil {
		t.Errorf("the connection at %s is not found", server.RemoteAddr())
	}
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Read(make([]byte, 10)); err != nil || server.Received() != 5 {
		t.Errorf("%v, %d bytes counted", err, server.Received())
	}
	if l.Held(ledger.Connection) != 1<<10 {
		t.Errorf("%d bytes counted of an open connection", l.Held(ledger.Connection))
	}
	server.Close()
	server.Close()
	if l.Held(ledger.Connection) != 0 {
		t.Errorf("%d bytes counted of a closed connection", l.Held(ledger.Connection))
	}
}

func TestATenantDoesNotLockItsAddress(t *testing.T) {
	l := ledger.New(ledger.Config{Bytes: mib, Places: 120 * mib}, nil)
	fill(t, open(l, ledger.Sender{Tenant: "attacker", Address: "10.0.0.1"}), ledger.Stream)
	if got, _ := fill(t, open(l, ledger.Sender{Unknown: true, Address: "10.0.0.1"}), ledger.Connection); got < 15 {
		t.Errorf("%d MiB are left for new connections of the address", got)
	}
	if got, _ := fill(t, open(l, ledger.Sender{Tenant: "honest", Address: "10.0.0.1"}), ledger.Stream); got < 10 {
		t.Errorf("%d MiB are left for another tenant of the address", got)
	}
}

// Frames of calls that have ended count until they are collected. They leave half of the pot to everything else.
func TestFramesLeaveRoomForAccounts(t *testing.T) {
	l := ledger.New(ledger.Config{Bytes: 1000, Places: 1000}, nil)
	for range 15 {
		l.Arrived(100)
	}
	if l.Overdrawn() {
		t.Error("1,500 bytes overdraw a pot of 1,000 by more than once its size")
	}
	account := open(l, ledger.Sender{Tenant: "honest", Address: "10.0.0.9"})
	if err := account.Take(ledger.Body, 100); err != nil {
		t.Errorf("a small body next to them: %v", err)
	}
	if err := account.Take(ledger.Body, 400); err == nil {
		t.Error("a body of more than half of what is left was taken")
	}
	if l.Arrived(600); !l.Overdrawn() {
		t.Error("2,200 bytes do not overdraw it")
	}
}
