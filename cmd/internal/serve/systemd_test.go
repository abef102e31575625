package serve

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// systemd is the side of the service manager: a socket that takes messages.
type systemd struct {
	t    *testing.T
	conn *net.UnixConn
	seen map[string]bool // messages without STATUS
}

func startSystemd(t *testing.T) *systemd {
	t.Helper()
	folder, err := os.MkdirTemp("", "sd") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	name := filepath.Join(folder, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_USEC", "50000")
	return &systemd{t, conn, map[string]bool{}}
}

// await reads until a message begins with state and contains status.
func (s *systemd) await(state, status string) {
	s.t.Helper()
	buffer := make([]byte, 4096)
	for {
		n, err := s.conn.Read(buffer)
		if err != nil {
			s.t.Fatalf("no %s with %q: %v; seen %v", state, status, err, s.seen)
		}
		got, text, _ := strings.Cut(string(buffer[:n]), "\n")
		s.seen[got] = true
		if got == state && strings.Contains(text, status) {
			return
		}
	}
}

func TestSystemdIsKeptInformed(t *testing.T) {
	notified := startSystemd(t)
	file := filepath.Join(t.TempDir(), "kvpilot.yaml")
	settings := "listen: {http: '127.0.0.1:0', grpc: '127.0.0.1:0', admin: '127.0.0.1:0', start_wait: 1ms}\nreload: {watch: false}\nregistry: {replicas: [{url: 'http://127.0.0.1:1'}]}\n"
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(settings)
	hangUp := func() {
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	command := Command(nil, io.Discard, io.Discard)
	command.SetArgs([]string{"--config", file})
	ended := make(chan error, 1)
	go func() { ended <- command.ExecuteContext(ctx) }()

	notified.await("READY=1", "serving HTTP at 127.0.0.1:")
	notified.await("WATCHDOG=1", "")
	write(settings + "telemetry: {log_level: debug}\n")
	hangUp()
	notified.await("RELOADING=1", "")
	notified.await("READY=1", "settings reloaded")
	write(settings + "no_such_setting: 1\n")
	hangUp()
	notified.await("RELOADING=1", "")
	notified.await("READY=1", "refused")
	stop()
	notified.await("STOPPING=1", "draining")
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestWithoutSystemdNothingIsReported(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	var said strings.Builder
	m := manager{&said}
	m.Reloading()
	m.Reloaded(nil)
	m.watchdog(t.Context()) // returns at once
	if said.Len() > 0 {
		t.Errorf("it says %q", said.String())
	}
}

func TestAManagerThatCannotBeReachedIsReported(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "none"))
	var said strings.Builder
	manager{&said}.send("READY=1")
	if !strings.Contains(said.String(), "systemd was not notified") {
		t.Errorf("it says %q", said.String())
	}
}
