package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/mod/semver"
)

const (
	modulePath    = "github.com/kvpilot/kvpilot"
	repositoryURL = "https://" + modulePath
	sumsName      = "SHA256SUMS"
)

// allPlatforms are the platforms of a release. Images are made for the Linux ones.
var allPlatforms = []string{"darwin/amd64", "darwin/arm64", "linux/amd64", "linux/arm64"}

type params struct {
	version, repository, revision, out, builder string
	platforms                                   []string
}

// file is one of the release's, in its folder.
type file struct{ name, sha256 string }

// release writes the release into p.out and returns its commit and its files, SHA256SUMS last.
func release(ctx context.Context, p params) (commit string, files []file, err error) {
	if !semver.IsValid(p.version) || semver.Canonical(p.version) != p.version {
		return "", nil, fmt.Errorf("-version must have the form v1.2.3 or v1.2.3-rc.1, is %q", p.version)
	}
	for _, platform := range p.platforms {
		if !slices.Contains(allPlatforms, platform) {
			return "", nil, fmt.Errorf("-platforms must be of %s, has %q", strings.Join(allPlatforms, ", "), platform)
		}
	}
	if runtime.Version() != toolchain {
		return "", nil, fmt.Errorf("this is %s, releases are made with %s: set GOTOOLCHAIN=%[2]s, as make release does", runtime.Version(), toolchain)
	}
	if err := emptyFolder(p.out); err != nil {
		return "", nil, err
	}
	work, err := os.MkdirTemp("", "kvpilot-release-")
	if err != nil {
		return "", nil, err
	}
	defer os.RemoveAll(work)
	src, err := checkout(ctx, p, filepath.Join(work, "src"))
	if err != nil {
		return "", nil, err
	}
	b := builder{src: src, version: p.version, work: work}
	binaries := map[string]string{}
	for _, platform := range p.platforms {
		if binaries[platform], err = b.build(ctx, platform); err != nil {
			return "", nil, err
		}
	}
	extra, err := b.extraFiles(ctx, binaries)
	if err != nil {
		return "", nil, err
	}
	r := &result{folder: p.out, prefix: "kvpilot_" + p.version}
	for _, platform := range p.platforms {
		name := r.prefix + "_" + strings.ReplaceAll(platform, "/", "_")
		if err := r.write(name+".tar.gz", func(path string) error { return writeArchive(path, name, src.date, binaries[platform], extra) }); err != nil {
			return "", nil, err
		}
		if err := r.write(name+".cdx.json", func(path string) error { return writeSBOM(path, binaries[platform], p.version, src.date) }); err != nil {
			return "", nil, err
		}
	}
	if err := r.write(r.prefix+"_chart.tgz", func(path string) error { return writeChart(path, src, p.version) }); err != nil {
		return "", nil, err
	}
	if err := r.image(src, p, binaries); err != nil {
		return "", nil, err
	}
	if err := r.write(r.prefix+"_provenance.json", func(path string) error { return writeProvenance(path, p, src, r) }); err != nil {
		return "", nil, err
	}
	files, err = r.sums()
	return src.commit, files, err
}

// emptyFolder makes the folder and removes an earlier release from it. A folder with anything else in it is an error.
func emptyFolder(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() || e.Name() != sumsName && !strings.HasPrefix(e.Name(), "kvpilot_v") {
			return fmt.Errorf("-out: %s holds %s, which is not of a release: name another folder", folder, e.Name())
		}
	}
	for _, e := range entries {
		err = errors.Join(err, os.Remove(filepath.Join(folder, e.Name())))
	}
	return err
}

// result is the release as far as it is written.
type result struct {
	folder, prefix string
	files          []file
	images         []imageManifest // of each platform, and the index of all; empty without an image
}

// imageManifest is a registry's name for an image. Tools that copy images may write the index in another form; they keep the others.
type imageManifest struct {
	name, sha256 string
	media        types.MediaType
}

// write makes a file and notes its digest.
func (r *result) write(name string, make func(path string) error) error {
	path := filepath.Join(r.folder, name)
	if err := make(path); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	r.files = append(r.files, file{name, hex.EncodeToString(sum[:])})
	return nil
}

// sums writes SHA256SUMS in the form of sha256sum.
func (r *result) sums() ([]file, error) {
	slices.SortFunc(r.files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	var text strings.Builder
	for _, f := range r.files {
		fmt.Fprintf(&text, "%s  %s\n", f.sha256, f.name)
	}
	err := r.write(sumsName, func(path string) error { return os.WriteFile(path, []byte(text.String()), 0o644) })
	return r.files, err
}
