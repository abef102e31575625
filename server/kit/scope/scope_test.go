package scope_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/kit/scope"
)

func TestTheZeroValueReportsNothing(t *testing.T) {
	var s scope.Scope
	s.Part("x").Log().Error("nothing")
	if _, err := s.Meters().Meter("x").Int64Counter("c"); err != nil {
		t.Error(err)
	}
	if _, span := s.Tracers().Tracer("x").Start(t.Context(), "s"); span.IsRecording() {
		t.Error("a span is recorded")
	}
}

func TestPartsNameTheirLines(t *testing.T) {
	var out bytes.Buffer
	scope.New(slog.New(slog.NewTextHandler(&out, nil)), nil, nil).Part("warm").Log().Info("m")
	if !strings.Contains(out.String(), "part=warm") {
		t.Error(out.String())
	}
}
