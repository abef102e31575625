package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"time"
)

// writeArchive packs a binary and the extra files below a folder. Times are the commit's, owners root: equal content is equal bytes.
func writeArchive(name, folder string, date time.Time, binary string, extra map[string][]byte) error {
	program, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	entries := []entry{{folder + "/kvpilot", 0o755, program}}
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		entries = append(entries, entry{folder + "/" + name, 0o644, extra[name]})
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	zipped := gzip.NewWriter(f)
	return errors.Join(writeTar(zipped, date, entries), zipped.Close(), f.Close())
}

// entry is a file of an archive.
type entry struct {
	name    string
	mode    int64
	content []byte
}

// writeTar writes the files in their order, each after the folders above it.
func writeTar(to io.Writer, date time.Time, entries []entry) error {
	archive := tar.NewWriter(to)
	folders := map[string]bool{".": true, "/": true}
	var folder func(name string) error
	folder = func(name string) error {
		if folders[name] {
			return nil
		}
		folders[name] = true
		if err := folder(path.Dir(name)); err != nil {
			return err
		}
		return archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: date, Format: tar.FormatUSTAR})
	}
	for _, e := range entries {
		if err := folder(path.Dir(e.name)); err != nil {
			return err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Size: int64(len(e.content)), ModTime: date, Format: tar.FormatUSTAR}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(e.content); err != nil {
			return err
		}
	}
	return archive.Close()
}
