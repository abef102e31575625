package build

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"strings"
)

// Release builds set these with -ldflags='-X github.com/kvpilot/kvpilot/cmd/internal/build.version=v0.1.0 …'. Other builds leave them empty.
var version, commit, date string

// Info describes a build. Fields that a build does not know are empty.
type Info struct {
	// Version is a release (v0.1.0), a pseudo-version of Go, the first 12 digits of a commit, or "devel".
	Version string `json:"version"`
	// Commit is the full hash of the commit.
	Commit string `json:"commit,omitempty"`
	// Date is the commit's time in RFC 3339, UTC.
	Date string `json:"date,omitempty"`
	// Modified reports that the sources had changes that are not in the commit.
	Modified bool `json:"modified"`
	// Go is the version of the Go toolchain.
	Go string `json:"go"`
	// Platform is GOOS/GOARCH.
	Platform string `json:"platform"`
}

// Read returns the build of the running program.
func Read() Info {
	info, _ := debug.ReadBuildInfo() // nil in a program that was built without modules
	return read(Info{Version: version, Commit: commit, Date: date}, info)
}

// read completes the linker's values with Go's record. The linker's values count: a release is built outside of its repository.
func read(stamped Info, recorded *debug.BuildInfo) Info {
	i := stamped
	i.Go, i.Platform = runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH
	if recorded != nil {
		for _, s := range recorded.Settings {
			switch s.Key {
			case "vcs.revision":
				i.Commit = cmp.Or(i.Commit, s.Value)
			case "vcs.time":
				i.Date = cmp.Or(i.Date, s.Value)
			case "vcs.modified":
				i.Modified = s.Value == "true" && stamped.Commit == ""
			}
		}
		if v := recorded.Main.Version; v != "(devel)" {
			i.Version = cmp.Or(i.Version, v)
		}
	}
	i.Version = cmp.Or(i.Version, i.Commit[:min(12, len(i.Commit))], "devel")
	return i
}

// String is the form of one line.
func (i Info) String() string {
	s := i.Version
	if i.Commit != "" {
		s += " (" + strings.TrimSpace("commit "+i.Commit[:min(12, len(i.Commit))]+" "+i.Date)
		if i.Modified {
			s += ", modified"
		}
		s += ")"
	}
	return s + ", " + i.Go + " on " + i.Platform
}
