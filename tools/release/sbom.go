package main

import (
	"errors"
	"os"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/generate/bin"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/licensedetect/local"
	"github.com/rs/zerolog"
)

// writeSBOM lists the modules that a binary was linked from, as the binary itself records it, with the licenses found in the module cache.
func writeSBOM(name, binary, version string, date time.Time) error {
	quiet := zerolog.Nop()
	generator, err := bin.NewGenerator(binary, bin.WithLogger(quiet), bin.WithIncludeStdlib(true), bin.WithLicenseDetector(local.NewDetector(quiet)), bin.WithVersionOverride(version))
	if err != nil {
		return err
	}
	bom, err := generator.Generate()
	if err != nil {
		return err
	}
	// The commit's time: two runs must give the same bytes.
	bom.Metadata.Timestamp = date.Format(time.RFC3339)
	bom.Metadata.Component.Licenses = &cdx.Licenses{{License: &cdx.License{ID: license}}}
	bom.Metadata.Tools = &cdx.ToolsChoice{Components: &[]cdx.Component{{Type: cdx.ComponentTypeApplication, Name: "cyclonedx-gomod"}}}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	encoder := cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON)
	encoder.SetPretty(true)
	return errors.Join(encoder.Encode(bom), f.Close())
}
