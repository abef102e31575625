// Command release makes a release of kvpilot in a folder: static binaries as archives, an image for several platforms as an OCI
// layout, a CycloneDX SBOM per binary, SLSA provenance and SHA256SUMS. It publishes nothing.
//
// It builds a commit, not the working tree, with a fixed version of Go and none of the machine's Go settings. The same commit and
// version give the same bytes on every machine; make release-check builds twice and compares. It is a module of its own for the sake
// of its libraries, which the product does not need.
package main
