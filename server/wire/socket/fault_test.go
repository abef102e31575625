package socket_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/kvpilot/kvpilot/server/wire/socket"
)

func TestWaits16WhatIsThisMachinesOwnFault(t *testing.T) {
	dialed := func(code syscall.Errno) error {
		return fmt.Errorf("probe: %w", &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", code)})
	}
	for err, want := range map[error]bool{
		dialed(syscall.EMFILE): true, dialed(syscall.ENFILE): true, dialed(syscall.EADDRNOTAVAIL): true, dialed(syscall.ENOBUFS): true,
		dialed(syscall.ENOMEM): true, &net.DNSError{Err: "dial udp 127.0.0.1:53: socket: " + syscall.EMFILE.Error(), Name: "gpu-1"}: true,
		&net.DNSError{Err: "no such host", Name: "gpu-1", IsNotFound: true}: false,
		dialed(syscall.ECONNREFUSED):                                        false, dialed(syscall.EHOSTUNREACH): false, errors.New("too many open files"): false,
	} {
		if got := socket.OwnFault(err); got != want {
			t.Errorf("OwnFault(%v) = %v", err, got)
		}
	}
	if socket.OwnFault(nil) {
		t.Error("no error is no fault")
	}
}
