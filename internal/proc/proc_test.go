package proc_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
)

func TestAProcessTalksAndStopsWithItsGroup(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	cmd := exec.Command("sh", "-c", "sleep 600 & echo ready; wait")
	cmd.ExtraFiles = []*os.File{write} // every process of the group has it
	p, line, _, err := proc.StartTalking("shell", cmd)
	write.Close()
	if err != nil || line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if p.Ended() || p.Err() != nil {
		t.Errorf("ended %v, error %v while it runs", p.Ended(), p.Err())
	}
	if resident, peak, err := proc.Memory(p.PID); err != nil || resident <= 0 || peak < resident {
		t.Errorf("memory %d, at most %d: %v", resident, peak, err)
	}
	p.Stop(10 * time.Second)
	if !p.Ended() || p.Err() == nil {
		t.Errorf("ended %v, error %v after it was stopped", p.Ended(), p.Err())
	}
	if rest, err := io.ReadAll(read); err != nil || len(rest) > 0 { // returns when the last process of the group has ended
		t.Errorf("%q, %v", rest, err)
	}
	p.Stop(0) // a second time does nothing
}

func TestAProcessThatSaysNothingIsAnError(t *testing.T) {
	if _, _, _, err := proc.StartTalking("mute", exec.Command("false")); err == nil || !strings.Contains(err.Error(), "mute") {
		t.Errorf("error %v", err)
	}
	if _, err := proc.Start("absent", exec.Command("./no-such-program")); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("error %v", err)
	}
}

func TestOutputIsAppendedToTheLog(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	for range 2 {
		p, err := proc.StartLogged("echo", log, proc.Command(t.Context(), "echo", "hello"))
		if err != nil {
			t.Fatal(err)
		}
		<-p.Gone()
		if p.Err() != nil {
			t.Error(p.Err())
		}
	}
	if text, err := os.ReadFile(log); err != nil || string(text) != "hello\nhello\n" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestAnEndedProcessIsNotWaitedFor(t *testing.T) {
	p, err := proc.Start("true", exec.Command("true"))
	if err != nil {
		t.Fatal(err)
	}
	never := func(context.Context) error { return syscall.EAGAIN }
	if err := p.Until(t.Context(), time.Minute, time.Millisecond, never); err == nil || !strings.Contains(err.Error(), "true ended") {
		t.Errorf("error %v", err)
	}
}

func TestFreeAddressesDiffer(t *testing.T) {
	list, err := proc.FreeAddresses(t.Context(), 20)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, address := range list {
		if seen[address] || !strings.HasPrefix(address, "127.0.0.1:") {
			t.Errorf("address %s in %v", address, list)
		}
		seen[address] = true
	}
}
