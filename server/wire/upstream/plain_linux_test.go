package upstream

import (
	"reflect"
	"testing"

	"github.com/kvpilot/kvpilot/server/wire/socket"
)

func TestPlainSocketsAreWhatTheCallerAsksFor(t *testing.T) {
	at := func(f any) uintptr { return reflect.ValueOf(f).Pointer() }
	if raw := (&conn{}).reader(); at(raw) != at(socket.Read) {
		t.Error("reads are not raw by default")
	}
	if plain := (&conn{plain: true}).reader(); at(plain) != at(socket.PlainRead) {
		t.Error("plain reads are raw")
	}
	target := serve(t, nil)
	c := New(DefaultConfig(), Params{PlainSockets: true})
	t.Cleanup(func() { c.transport.shut() })
	h, err := c.transport.host(target.Replica)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := c.transport.connect(ctxFor(t), h, c.transport.cfg.Load())
	if err != nil {
		t.Fatal(err)
	}
	defer opened.shut()
	if !opened.plain {
		t.Error("a connection that is opened reads raw")
	}
}
