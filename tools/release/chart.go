package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

const chartFolder = "deploy/helm/kvpilot"

// chartVersions are the two lines of Chart.yaml that a release sets.
var chartVersions = regexp.MustCompile(`(?m)^(version|appVersion): .*$`)

// writeChart packs the chart as helm package does, with the release's version for chart and image.
func writeChart(name string, src source, version string) error {
	root := filepath.Join(src.folder, chartFolder)
	var entries []entry
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		short, err := filepath.Rel(root, path)
		if short == "Chart.yaml" {
			if n := len(chartVersions.FindAll(content, -1)); n != 2 {
				return fmt.Errorf("Chart.yaml has %d versions, want 2", n)
			}
			content = chartVersions.ReplaceAllFunc(content, func(line []byte) []byte {
				if line[0] == 'v' {
					return []byte("version: " + version[1:])
				}
				return []byte(`appVersion: "` + version + `"`)
			})
		}
		entries = append(entries, entry{"kvpilot/" + filepath.ToSlash(short), 0o644, content})
		return err
	})
	if err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	zipped := gzip.NewWriter(f)
	return errors.Join(writeTar(zipped, src.date, entries), zipped.Close(), f.Close())
}
