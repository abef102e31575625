package deploy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// image is what the last stage of the Dockerfile makes, in a folder.
type image struct {
	root    string
	env     []string
	args    []string // of the build, which have a default
	command []string // entry point and default arguments
	entry   int      // how many of them are the entry point
}

// buildImage follows the Dockerfile as far as it is used there. Certificates come from this machine, if it has them.
func buildImage(t *testing.T) image {
	t.Helper()
	i := image{root: t.TempDir()}
	if err := os.Chmod(i.root, 0o755); err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("$TARGETOS", "linux", "$TARGETARCH", runtime.GOARCH).Replace(string(readFile(t, "Dockerfile")))
	for line := range strings.Lines(text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		fields := strings.Fields(rest)
		switch word {
		case "RUN":
			if strings.Contains(rest, "go build") {
				i.put(t, "/kvpilot", buildBinary(t, rest, append(i.args, "VERSION="+builtVersion)), 0o755)
			}
		case "COPY":
			switch {
			case strings.Contains(rest, "ca-certificates.crt"):
				if certs, err := os.ReadFile(fields[1]); err == nil {
					i.put(t, fields[2]+filepath.Base(fields[1]), certs, 0o644)
				}
			case strings.HasPrefix(rest, "deploy/"):
				i.put(t, fields[1], readFile(t, "../"+fields[0]), 0o644)
			}
		case "ARG":
			if strings.Contains(rest, "=") {
				i.args = append(i.args, rest)
			}
		case "ENV":
			i.env = append(i.env, rest)
		case "ENTRYPOINT", "CMD":
			var args []string
			if err := json.Unmarshal([]byte(rest), &args); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			if word == "ENTRYPOINT" {
				i.entry = len(args)
			}
			i.command = append(i.command, args...)
		}
	}
	return i
}

// builtVersion is what the image is built with.
const builtVersion = "v0.0.0-image"

// buildBinary runs the build of a RUN line with its arguments.
func buildBinary(t *testing.T, line string, args []string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "kvpilot")
	build := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(line, "-o /kvpilot", "-o "+out, 1))
	build.Dir, build.Env = "..", append(os.Environ(), args...)
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, text)
	}
	binary, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

func (i image) put(t *testing.T, name string, content []byte, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(i.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, mode); err != nil {
		t.Fatal(err)
	}
}

// run starts the image as a container would: in its own root, as its user, with its variables alone.
func (i image) run(ctx context.Context, out *bytes.Buffer, args ...string) *exec.Cmd {
	if len(args) == 0 {
		args = i.command[i.entry:]
	}
	command := exec.CommandContext(ctx, i.command[0], append(i.command[1:i.entry:i.entry], args...)...)
	command.Env, command.Dir, command.Stdout, command.Stderr = i.env, "/", out, out
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 20 * time.Second
	command.SysProcAttr = &syscall.SysProcAttr{Chroot: i.root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	return command
}

func TestTheImageServesOnAllAddresses(t *testing.T) {
	if testing.Short() || runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("SKIPPED: changing the root folder needs root on Linux, and time")
	}
	i := buildImage(t)
	var settings, version bytes.Buffer
	if err := i.run(t.Context(), &version, "version").Run(); err != nil || !strings.Contains(version.String(), builtVersion) {
		t.Errorf("it is not built as %s: %v\n%s", builtVersion, err, version.String())
	}
	if err := i.run(t.Context(), &settings, "serve", "--replica", "http://10.0.0.7:8000", "--print-config").Run(); err != nil {
		t.Fatalf("%v\n%s", err, settings.String())
	}
	for _, address := range []string{`http: ":8080"`, `grpc: ":9090"`, `admin: ":9091"`} {
		if !strings.Contains(strings.ReplaceAll(settings.String(), "'", `"`), address) && !strings.Contains(settings.String(), strings.ReplaceAll(address, `"`, "")) {
			t.Errorf("the settings have no %s:\n%.600s", address, settings.String())
		}
	}
	if exposed := regexp.MustCompile(`(?m)^EXPOSE 8080 9090 9091$`); !exposed.Match(readFile(t, "Dockerfile")) {
		t.Error("the image exposes other ports than it listens on")
	}

	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var out bytes.Buffer
	command := i.run(ctx, &out, "serve", "--replica", "http://127.0.0.1:1", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--set", "listen.start_wait=1ms")
	began := make(chan struct{})
	command.Stderr = &watched{to: &out, word: []byte("msg=serving"), seen: began}
	command.Stdout = nil
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-began:
	case <-ctx.Done():
	}
	stop() // as docker stop: SIGTERM
	err := command.Wait()
	if text := out.String(); !strings.Contains(text, "msg=serving") {
		t.Errorf("in an empty filesystem it does not serve: %v\n%s", err, text)
	}
	if command.ProcessState.ExitCode() != 0 {
		t.Errorf("stopped, it exits with %d:\n%s", command.ProcessState.ExitCode(), out.String())
	}
}

// watched closes seen when a word comes by. Only the copying goroutine of exec writes.
type watched struct {
	to   *bytes.Buffer
	word []byte
	seen chan struct{}
	done bool
}

func (w *watched) Write(b []byte) (int, error) {
	n, err := w.to.Write(b)
	if !w.done && bytes.Contains(w.to.Bytes(), w.word) {
		w.done = true
		close(w.seen)
	}
	return n, err
}
