package main

import (
	"bytes"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const license = "Apache-2.0"

// imageConfig is the config of the last stage of deploy/Dockerfile; a test compares the two.
func imageConfig() v1.Config {
	return v1.Config{
		Entrypoint: []string{"/kvpilot"}, Cmd: []string{"serve"}, User: "65532:65532",
		Env:          []string{"KVPILOT_CONFIG=/etc/kvpilot/default.yaml"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "9090/tcp": {}, "9091/tcp": {}},
	}
}

// image writes the image of all Linux platforms as an OCI layout in a tar archive, if there are any.
func (r *result) image(src source, p params, binaries map[string]string) error {
	about := annotations(p.version, src)
	index, ok := mutate.Annotations(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), about).(v1.ImageIndex)
	if !ok {
		return errors.New("an annotated index is not an index")
	}
	linux := 0
	settings, err := os.ReadFile(filepath.Join(src.folder, "deploy/container/kvpilot.yaml"))
	if err != nil {
		return err
	}
	for _, platform := range p.platforms {
		processor, ok := strings.CutPrefix(platform, "linux/")
		if !ok {
			continue
		}
		linux++
		binary, err := os.ReadFile(binaries[platform])
		if err != nil {
			return err
		}
		image, err := platformImage(src, processor, binary, settings, about)
		if err != nil {
			return err
		}
		digest, err := image.Digest()
		if err != nil {
			return err
		}
		r.images = append(r.images, imageManifest{"kvpilot (" + platform + ")", digest.Hex, types.OCIManifestSchema1})
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: plainImage{image}, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: processor}}})
	}
	if linux == 0 {
		return nil
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	r.images = append(r.images, imageManifest{"kvpilot", digest.Hex, types.OCIImageIndex})
	return r.write(r.prefix+"_image.tar", func(path string) error { return writeLayout(path, index, p.version, src) })
}

// plainImage leaves the artifact type out of an index, as other tools do: it is for objects that are not images.
type plainImage struct{ v1.Image }

// ArtifactType returns none.
func (plainImage) ArtifactType() (string, error) { return "", nil }

// annotations are OpenContainers' names; images have them as labels too.
func annotations(version string, src source) map[string]string {
	const name = "org.opencontainers.image."
	return map[string]string{
		name + "title": "kvpilot", name + "description": "A KV-cache-aware inference router for vLLM", name + "licenses": license,
		name + "source": repositoryURL, name + "url": repositoryURL, name + "documentation": repositoryURL + "/blob/" + version + "/docs/install.md",
		name + "version": version, name + "revision": src.commit, name + "created": src.date.Format(time.RFC3339),
	}
}

// platformImage has two layers: the files that all platforms share, and the binary.
func platformImage(src source, processor string, binary, settings []byte, about map[string]string) (v1.Image, error) {
	certificates, err := authorities()
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	config := &v1.ConfigFile{Architecture: processor, OS: "linux", Created: v1.Time{Time: src.date}, Config: imageConfig(), RootFS: v1.RootFS{Type: "layers"}}
	config.Config.Labels = about
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	for _, layer := range []struct {
		comment string
		files   []entry
	}{
		{"certificates and settings", []entry{{"etc/kvpilot/default.yaml", 0o644, settings}, {"etc/ssl/certs/ca-certificates.crt", 0o644, certificates}}},
		{"kvpilot", []entry{{"kvpilot", 0o755, binary}}},
	} {
		var packed bytes.Buffer
		if err := writeTar(&packed, src.date, layer.files); err != nil {
			return nil, err
		}
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed.Bytes())), nil }, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, err
		}
		history := v1.History{Created: v1.Time{Time: src.date}, CreatedBy: repositoryURL + "/tools/release", Comment: layer.comment}
		if image, err = mutate.Append(image, mutate.Addendum{Layer: l, History: history, MediaType: types.OCILayer}); err != nil {
			return nil, err
		}
	}
	annotated, ok := mutate.Annotations(image, about).(v1.Image)
	if !ok {
		return nil, errors.New("an annotated image is not an image")
	}
	return annotated, nil
}

// authorities are Mozilla's root certificates as the Go project keeps them: the machine's are not used.
func authorities() ([]byte, error) {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// writeLayout writes an OCI layout with one entry, the index, as a tar archive that skopeo, podman and docker read.
func writeLayout(name string, index v1.ImageIndex, version string, src source) error {
	folder, err := os.MkdirTemp("", "kvpilot-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	written, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	if err := written.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": version})); err != nil {
		return err
	}
	var entries []entry
	err = fs.WalkDir(os.DirFS(folder), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(folder, path))
		entries = append(entries, entry{path, 0o644, content})
		return err
	})
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(writeTar(f, src.date, entries), f.Close())
}
