package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// opened is the image of a release.
type opened struct {
	digest string // of the index
	images map[string]v1.Image
	about  map[string]string
}

func openImage(t *testing.T) opened {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "layout")
	if err := unpack(tar.NewReader(bytes.NewReader(read(t, named(t, "_image.tar")[0]))), folder); err != nil {
		t.Fatal(err)
	}
	top, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	list, err := top.IndexManifest()
	if err != nil || len(list.Manifests) != 1 || list.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != testVersion {
		t.Fatalf("the layout has %+v, %v", list, err)
	}
	index, err := top.ImageIndex(list.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Fatal(err)
	}
	platforms, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	all := opened{digest: list.Manifests[0].Digest.Hex, images: map[string]v1.Image{}, about: platforms.Annotations}
	for _, m := range platforms.Manifests {
		if m.ArtifactType != "" {
			t.Errorf("the image for %s is called an artifact: %s", m.Platform, m.ArtifactType)
		}
		if all.images[m.Platform.String()], err = index.Image(m.Digest); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestTheImageHasEveryLinuxPlatform(t *testing.T) {
	image := openImage(t)
	var want []string
	for _, platform := range testPlatforms() {
		if strings.HasPrefix(platform, "linux/") {
			want = append(want, platform)
		}
	}
	if got := slices.Sorted(maps.Keys(image.images)); !slices.Equal(got, want) {
		t.Errorf("it has %v, want %v", got, want)
	}
	head, err := git(t.Context(), ".", "rev-parse", "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"version": testVersion, "revision": head, "licenses": "Apache-2.0", "source": "https://github.com/kvpilot/kvpilot", "title": "kvpilot"} {
		name = "org.opencontainers.image." + name
		if image.about[name] != want {
			t.Errorf("the index has %s=%q, want %q", name, image.about[name], want)
		}
		for platform, one := range image.images {
			config, err := one.ConfigFile()
			if err != nil || config.Config.Labels[name] != want {
				t.Errorf("%s: %s=%q, %v; want %q", platform, name, config.Config.Labels[name], err, want)
			}
			if "linux/"+config.Architecture != platform || config.Created.IsZero() {
				t.Errorf("%s is for %s of %s", platform, config.Architecture, config.Created)
			}
		}
	}
}

// dockerfile returns what the last stage of deploy/Dockerfile says of the image, and the files that it copies.
func dockerfile(t *testing.T) (v1.Config, []string) {
	t.Helper()
	config, copied := v1.Config{ExposedPorts: map[string]struct{}{}}, []string(nil)
	for line := range strings.Lines(string(read(t, "../../deploy/Dockerfile"))) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		fields := strings.Fields(rest)
		var err error
		switch word {
		case "FROM":
			config, copied = v1.Config{ExposedPorts: map[string]struct{}{}}, nil
		case "COPY":
			from, to := fields[len(fields)-2], fields[len(fields)-1]
			if strings.HasSuffix(to, "/") {
				to += filepath.Base(from)
			}
			copied = append(copied, strings.TrimPrefix(to, "/"))
		case "ENV":
			config.Env = append(config.Env, rest)
		case "USER":
			config.User = rest
		case "WORKDIR":
			config.WorkingDir = rest
		case "EXPOSE":
			for _, port := range fields {
				config.ExposedPorts[port+"/tcp"] = struct{}{}
			}
		case "ENTRYPOINT":
			err = json.Unmarshal([]byte(rest), &config.Entrypoint)
		case "CMD":
			err = json.Unmarshal([]byte(rest), &config.Cmd)
		case "", "#", "ARG", "RUN":
		default:
			if !strings.HasPrefix(word, "#") {
				t.Errorf("the Dockerfile has %s, which the image may lack", word)
			}
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	slices.Sort(copied)
	return config, copied
}

func TestTheImageIsTheDockerfiles(t *testing.T) {
	want, files := dockerfile(t)
	for platform, image := range openImage(t).images {
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		got := config.Config
		got.Labels = nil
		gotText, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		wantText, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(gotText, wantText) {
			t.Errorf("%s: the image says\n%s\nthe Dockerfile\n%s", platform, gotText, wantText)
		}
		if len(files) != 3 {
			t.Errorf("the Dockerfile copies %v", files)
		}
		root := filesystem(t, image)
		var found []string
		err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				name, _ := filepath.Rel(root, path)
				found = append(found, name)
			}
			return err
		})
		if err != nil || !slices.Equal(found, files) {
			t.Errorf("%s: the image holds %v, want %v: %v", platform, found, files, err)
		}
		if settings := read(t, root, "etc/kvpilot/default.yaml"); !bytes.Contains(settings, []byte(`http: ":8080"`)) {
			t.Errorf("it does not listen on all addresses:\n%s", settings)
		}
		certificates := x509.NewCertPool()
		if text := read(t, root, "etc/ssl/certs/ca-certificates.crt"); !certificates.AppendCertsFromPEM(text) || bytes.Count(text, []byte("BEGIN CERTIFICATE")) < 100 {
			t.Errorf("%d bytes of certificates", len(text))
		}
	}
}

// filesystem unpacks all layers.
func filesystem(t *testing.T, image v1.Image) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	layers := mutate.Extract(image)
	defer layers.Close()
	root := filepath.Join(folder, "root")
	if err := unpack(tar.NewReader(layers), root); err != nil {
		t.Fatal(err)
	}
	return root
}

// TestTheImageServes starts the image of this platform as a container would: in its own root, as its user, with its variables alone.
func TestTheImageServes(t *testing.T) {
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("SKIPPED: changing the root folder needs root on Linux")
	}
	image := openImage(t).images["linux/"+runtime.GOARCH]
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config, root := file.Config, filesystem(t, image)
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	start := func(args ...string) *exec.Cmd {
		command := exec.CommandContext(ctx, config.Entrypoint[0], append(slices.Clone(config.Entrypoint[1:]), args...)...)
		command.Env, command.Dir = config.Env, "/"
		command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
		command.WaitDelay = 20 * time.Second
		command.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		return command
	}
	if said, err := start("version").CombinedOutput(); err != nil || !strings.Contains(string(said), testVersion) {
		t.Fatalf("%v\n%s", err, said)
	}
	printed, err := start(append(slices.Clone(config.Cmd), "--replica", "http://10.0.0.7:8000", "--print-config")...).CombinedOutput()
	if err != nil || !bytes.Contains(printed, []byte(":8080")) || bytes.Contains(printed, []byte("127.0.0.1:8080")) {
		t.Errorf("%v\n%.600s", err, printed)
	}
	serving := &watched{seen: make(chan struct{})}
	router := start(append(slices.Clone(config.Cmd), "--replica", "http://127.0.0.1:1", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--set", "listen.start_wait=1ms")...)
	router.Stderr = serving
	if err := router.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-serving.seen:
	case <-ctx.Done():
	}
	stop() // as docker stop: SIGTERM
	_ = router.Wait()
	if router.ProcessState.ExitCode() != 0 || !strings.Contains(serving.text.String(), testVersion) {
		t.Errorf("it exits with %d:\n%s", router.ProcessState.ExitCode(), serving.text.String())
	}
}

// watched closes seen when the router serves. Only the copying goroutine of exec writes.
type watched struct {
	text bytes.Buffer
	once sync.Once
	seen chan struct{}
}

func (w *watched) Write(b []byte) (int, error) {
	n, err := w.text.Write(b)
	if bytes.Contains(w.text.Bytes(), []byte("msg=serving")) {
		w.once.Do(func() { close(w.seen) })
	}
	return n, err
}
