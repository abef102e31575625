package server

import (
	"net"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
)

func TestRawSocketsCanBeTurnedOff(t *testing.T) {
	for _, raw := range []bool{true, false} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c := config.DefaultListen()
		if !c.RawSockets {
			t.Error("they are off without a word")
		}
		c.RawSockets = raw
		if plain := quick(c, l) == l; plain == raw {
			t.Errorf("raw_sockets %v: the listener is package net's: %v", raw, plain)
		}
		l.Close()
	}
}
