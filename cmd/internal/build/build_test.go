package build

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestReadFindsTheVersion(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	vcs := func(module, modified string) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: module}, Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: commit}, {Key: "vcs.time", Value: "2026-11-23T10:00:00Z"}, {Key: "vcs.modified", Value: modified},
		}}
	}
	release := Info{Version: "v0.1.0", Commit: commit, Date: "2026-11-20T10:00:00Z"}
	about := ", " + runtime.Version() + " on " + runtime.GOOS + "/" + runtime.GOARCH
	for name, test := range map[string]struct {
		stamped  Info
		recorded *debug.BuildInfo
		want     string
	}{
		"a release":                       {release, nil, "v0.1.0 (commit 0123456789ab 2026-11-20T10:00:00Z)"},
		"a release built in a checkout":   {release, vcs("v0.0.9", "true"), "v0.1.0 (commit 0123456789ab 2026-11-20T10:00:00Z)"},
		"go install":                      {Info{}, &debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}}, "v0.1.0"},
		"a checkout":                      {Info{}, vcs("v0.1.1-0.20261123100000-0123456789ab", "false"), "v0.1.1-0.20261123100000-0123456789ab (commit 0123456789ab 2026-11-23T10:00:00Z)"},
		"a checkout, older Go":            {Info{}, vcs("(devel)", "false"), "0123456789ab (commit 0123456789ab 2026-11-23T10:00:00Z)"},
		"a checkout with changes":         {Info{}, vcs("v0.1.0+dirty", "true"), "v0.1.0+dirty (commit 0123456789ab 2026-11-23T10:00:00Z, modified)"},
		"a checkout with -buildvcs=false": {Info{}, &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "devel"},
		"a test binary":                   {Info{}, &debug.BuildInfo{}, "devel"},
		"without modules":                 {Info{}, nil, "devel"},
	} {
		if got := read(test.stamped, test.recorded).String(); got != test.want+about {
			t.Errorf("%s: got %q, want %q", name, got, test.want+about)
		}
	}
}

func TestReadIsNeverEmpty(t *testing.T) {
	if got := Read(); got.Version == "" || got.Go == "" || got.Platform == "" {
		t.Errorf("got %+v", got)
	}
}
