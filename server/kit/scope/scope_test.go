package scope_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/scope"
)

func TestTheZeroValueReportsNothing(t *testing.T) {
	var s scope.Scope
	s.Part("x").Log().Error("nothing")
	if _, err := s.Meters().Meter("x").Int64Counter("c"); err != nil {
		t.Error(err)
	}
	if _, span := s.Tracer("x").Start(t.Context(), "s"); span.IsRecording() {
		t.Error("a span is recorded")
	}
	if before := time.Now(); s.Clock().Now().Before(before) {
		t.Error("the clock is not the system's")
	}
}

func TestPartsNameTheirLines(t *testing.T) {
	var out bytes.Buffer
	scope.Logged(slog.New(slog.NewTextHandler(&out, nil))).Part("warm").Log().Info("m")
	if !strings.Contains(out.String(), "part=warm") {
		t.Error(out.String())
	}
}

type stopped time.Time

func (s stopped) Now() time.Time { return time.Time(s) }

func TestAPartHasTheClockThatItIsGiven(t *testing.T) {
	moment := time.Unix(1, 0)
	if got := (scope.Scope{}).At(stopped(moment)).Part("x").Clock().Now(); !got.Equal(moment) {
		t.Errorf("%v, want %v", got, moment)
	}
}
