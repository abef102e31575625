package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"golang.org/x/mod/modfile"
	"google.golang.org/protobuf/encoding/protojson"
)

const testVersion = "v0.1.0-test.1"

// testPlatforms are this machine's and, for the image, Linux.
func testPlatforms() []string {
	if os.Getenv("RELEASE_ALL") != "" {
		return allPlatforms
	}
	own := []string{runtime.GOOS + "/" + runtime.GOARCH, "linux/" + runtime.GOARCH}
	return slices.Compact(own)
}

// made is a release of HEAD, which the tests of this package share.
var made = sync.OnceValues(func() (string, error) {
	folder := filepath.Join(shared, "dist")
	_, _, err := release(context.Background(), testParams(folder))
	return folder, err
})

func testParams(folder string) params {
	return params{version: testVersion, repository: ".", revision: "HEAD", out: folder, builder: localBuilder, platforms: testPlatforms()}
}

func dist(t *testing.T) string {
	t.Helper()
	folder, err := made()
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

func read(t *testing.T, elements ...string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// named returns the files of the release whose names end so.
func named(t *testing.T, suffix string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dist(t), "kvpilot_"+testVersion+"*"+suffix))
	if err != nil || len(found) == 0 {
		t.Fatalf("no file ends with %s: %v", suffix, err)
	}
	return found
}

// TestTwoBuildsAreEqual builds again in another folder. With RELEASE_ALL it builds all platforms, with a build cache of its own.
func TestTwoBuildsAreEqual(t *testing.T) {
	first, second := dist(t), t.TempDir()
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("GOFLAGS", "-ldflags=-compressdwarf=false") // a machine's own flags have no effect
	if os.Getenv("RELEASE_ALL") != "" {
		t.Setenv("GOCACHE", t.TempDir())
	}
	_, files, err := release(t.Context(), testParams(second))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !bytes.Equal(read(t, first, f.name), read(t, second, f.name)) {
			t.Errorf("%s differs", f.name)
		}
	}
	if entries, err := os.ReadDir(first); err != nil || len(entries) != len(files) {
		t.Errorf("%d files, then %d: %v", len(entries), len(files), err)
	}
}

func TestTheSumsAreThoseOfTheFiles(t *testing.T) {
	if _, err := exec.LookPath("sha256sum"); err != nil {
		t.Skip("SKIPPED: no sha256sum")
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", sumsName)
	check.Dir = dist(t)
	said, err := check.CombinedOutput()
	if want := 2*len(testPlatforms()) + 3; err != nil || bytes.Count(said, []byte(": OK\n")) != want {
		t.Errorf("%v, want %d files:\n%s", err, want, said)
	}
}

// unzip unpacks an archive and returns its one folder.
func unzip(t *testing.T, archive string) string {
	t.Helper()
	zipped, err := gzip.NewReader(bytes.NewReader(read(t, archive)))
	if err != nil {
		t.Fatal(err)
	}
	if zipped.Name != "" || !zipped.ModTime.IsZero() {
		t.Errorf("the header names %q at %s", zipped.Name, zipped.ModTime)
	}
	text, err := io.ReadAll(zipped)
	if err != nil {
		t.Fatal(err)
	}
	for entries := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || h.Mode&0o022 != 0 {
			t.Errorf("%+v, %v", h, err)
		}
	}
	folder := filepath.Join(t.TempDir(), "unpacked")
	if err := unpack(tar.NewReader(bytes.NewReader(text)), folder); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%s holds %v, %v", archive, entries, err)
	}
	return filepath.Join(folder, entries[0].Name())
}

func TestTheChartHasTheVersionOfTheRelease(t *testing.T) {
	folder := unzip(t, named(t, "_chart.tgz")[0])
	about := string(read(t, folder, "Chart.yaml"))
	if want := "\nversion: " + testVersion[1:] + "\nappVersion: \"" + testVersion + "\"\n"; !strings.Contains(about, want) || filepath.Base(folder) != "kvpilot" {
		t.Errorf("%s says\n%s", folder, about)
	}
	for _, name := range []string{"values.yaml", "values.schema.json", "templates/deployment.yaml", "templates/_helpers.tpl", "files/rules.yml"} {
		if !bytes.Equal(read(t, folder, name), read(t, "../..", chartFolder, name)) {
			t.Errorf("%s differs from the repository's", name)
		}
	}
}

func TestArchivesHoldAProgramThatKnowsItsVersion(t *testing.T) {
	head, err := git(t.Context(), ".", "rev-parse", "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	for _, archive := range named(t, ".tar.gz") {
		folder := unzip(t, archive)
		if want := strings.TrimSuffix(filepath.Base(archive), ".tar.gz"); filepath.Base(folder) != want {
			t.Errorf("%s unpacks into %s, want %s", archive, folder, want)
		}
		for _, name := range []string{"LICENSE", "README.md", "kvpilot.example.yaml", "completions/kvpilot.bash", "completions/_kvpilot", "completions/kvpilot.fish", "systemd/kvpilot.service", "systemd/kvpilot.sysusers"} {
			if len(read(t, folder, name)) < 100 {
				t.Errorf("%s: %s is short", archive, name)
			}
		}
		program := filepath.Join(folder, "kvpilot")
		if strings.Contains(archive, "_linux_") {
			isStatic(t, program)
		}
		if !strings.Contains(archive, runtime.GOOS+"_"+runtime.GOARCH) {
			continue
		}
		said, err := exec.CommandContext(t.Context(), program, "version", "-o", "json").CombinedOutput()
		var about struct {
			Version, Commit, Date, Go string
			Modified                  bool
		}
		if err := errors.Join(err, json.Unmarshal(said, &about)); err != nil || about.Version != testVersion || about.Commit != head || about.Date == "" || about.Modified || about.Go != toolchain {
			t.Errorf("%v\n%s", err, said)
		}
	}
}

func isStatic(t *testing.T, program string) {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("%s needs a loader: %v", program, p.Type)
		}
	}
}

func TestTheSBOMListsWhatIsLinked(t *testing.T) {
	requirements, err := modfile.Parse("go.mod", read(t, "../../go.mod"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range named(t, ".cdx.json") {
		var bom cdx.BOM
		if err := cdx.NewBOMDecoder(bytes.NewReader(read(t, name)), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
			t.Fatal(err)
		}
		if main := bom.Metadata.Component; main.Name != modulePath || main.Version != testVersion || main.Licenses == nil {
			t.Errorf("it is of %+v", main)
		}
		versions, licensed := map[string]string{}, 0
		for _, c := range *bom.Components {
			versions[c.Name] = c.Version
			if c.Evidence != nil && c.Evidence.Licenses != nil {
				licensed++
			}
		}
		for _, path := range []string{"google.golang.org/grpc", "github.com/hashicorp/memberlist", "go.opentelemetry.io/otel"} {
			i := slices.IndexFunc(requirements.Require, func(r *modfile.Require) bool { return r.Mod.Path == path })
			if i < 0 || versions[path] != requirements.Require[i].Mod.Version {
				t.Errorf("%s: it has version %q of %s", name, versions[path], path)
			}
		}
		if versions["std"] != toolchain || len(versions) < 50 || licensed < len(versions)*9/10 {
			t.Errorf("%s: Go is %q; %d components, %d with a license", name, versions["std"], len(versions), licensed)
		}
	}
}

func TestTheProvenanceNamesEveryFileAndTheCommit(t *testing.T) {
	head, err := git(t.Context(), ".", "rev-parse", "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	var statement intoto.Statement
	if err := protojson.Unmarshal(read(t, named(t, "_provenance.json")[0]), &statement); err != nil {
		t.Fatal(err)
	}
	text, err := protojson.Marshal(statement.GetPredicate())
	if err != nil {
		t.Fatal(err)
	}
	var predicate slsa.Provenance
	if err := errors.Join(protojson.Unmarshal(text, &predicate), statement.Validate(), predicate.Validate()); err != nil {
		t.Fatal(err)
	}
	if got := predicate.GetBuildDefinition().GetResolvedDependencies()[0].GetDigest()["gitCommit"]; got != head || statement.GetPredicateType() != predicateType {
		t.Errorf("built from %s, want %s", got, head)
	}
	digests := map[string]string{}
	for _, s := range statement.GetSubject() {
		digests[s.GetName()] = s.GetDigest()["sha256"]
	}
	for line := range strings.Lines(string(read(t, dist(t), sumsName))) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if digests[name] != sum && !strings.HasSuffix(name, "_provenance.json") {
			t.Errorf("%s: digest %s, want %s", name, digests[name], sum)
		}
	}
	image := openImage(t)
	if digests["kvpilot"] != image.digest {
		t.Errorf("the image is %s, want %s", digests["kvpilot"], image.digest)
	}
	for platform, one := range image.images {
		if digest, err := one.Digest(); err != nil || digests["kvpilot ("+platform+")"] != digest.Hex {
			t.Errorf("the image for %s is %s, want %s: %v", platform, digests["kvpilot ("+platform+")"], digest.Hex, err)
		}
	}
}
