package server

import (
	"context"
	"slices"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/kit/reload"
)

// What the table promises, some part takes; and what a part takes is in the table, which config.LiveBelow sees to.
func TestEverySettingThatNeedsNoRestartHasASection(t *testing.T) {
	s, err := New(context.Background(), config.Default(), Params{})
	if err != nil {
		t.Fatal(err)
	}
	taken := map[string]bool{}
	for _, section := range s.sections() {
		if len(section.Paths) == 0 {
			t.Errorf("%s takes nothing", section.Name)
		}
		for _, path := range section.Paths {
			taken[path] = true
		}
	}
	for _, path := range config.LivePaths() {
		if !taken[path] {
			t.Errorf("no section takes %s", path)
		}
	}
	if s.changeable() != nil {
		t.Error("settings without a source cannot be read again")
	}
}

// Each part puts defaults in force, and takes them back, without a word.
func TestSectionsApplyAndGoBack(t *testing.T) {
	s, err := New(context.Background(), config.Default(), Params{})
	if err != nil {
		t.Fatal(err)
	}
	now, next := config.Default(), config.Default()
	next.Chooser.Policy = "round-robin"
	next.Chooser.HoldAbove = 0
	next.Router.MaxMembers = 99
	for _, section := range s.sections() {
		if section.Name == "registry" { // it has no life here
			continue
		}
		if part, ok := section.Part.(reload.Checker[config.Config]); ok {
			if err := part.Check(now, next); err != nil {
				t.Errorf("%s: %v", section.Name, err)
			}
		}
		if err := section.Part.Apply(now, next); err != nil {
			t.Errorf("%s: %v", section.Name, err)
			continue
		}
		if section.Name == "chooser" && s.parts.chooser.Config().Policy != "round-robin" {
			t.Error("the chooser did not take its policy")
		}
		if err := section.Part.Apply(next, now); err != nil {
			t.Errorf("%s: %v", section.Name, err)
		}
	}
	if c := s.parts.chooser.Config(); c.Policy != now.Chooser.Policy || c.HoldAbove != now.Chooser.HoldAbove {
		t.Errorf("the chooser did not go back: %+v", c)
	}
	if !slices.ContainsFunc(s.settings.Versions(), func(v reload.Version) bool { return v.Number == 1 && v.Origin == reload.OriginStart }) {
		t.Error("the settings that it began with are no version")
	}
}
