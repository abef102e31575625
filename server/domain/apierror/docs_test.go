package apierror_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

// TestTheReferenceListsEveryReason keeps the table of docs/api.md true.
func TestTheReferenceListsEveryReason(t *testing.T) {
	text, err := os.ReadFile("../../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 {
			continue
		}
		for name := range strings.SplitSeq(cells[1], ",") {
			documented[strings.TrimSpace(name)] = strings.TrimSpace(cells[2]) + " " + strings.TrimSpace(cells[3]) + " " + strings.TrimSpace(cells[4])
		}
	}
	for number := range kvpilotv1.ErrorReason_name {
		r := apierror.Reason(number)
		if r == apierror.Unspecified {
			continue
		}
		rpc, status, kind := apierror.Codes(r)
		want := fmt.Sprintf("%s %d %s", screaming(rpc.String()), status, kind)
		if got := documented[apierror.Name(r)]; got != want {
			t.Errorf("%s is documented as %q, want %q", apierror.Name(r), got, want)
		}
	}
}

// screaming turns grpc-go's name of a code into the one that gRPC's documentation uses.
func screaming(name string) string {
	var out strings.Builder
	for i, c := range name {
		if i > 0 && c >= 'A' && c <= 'Z' {
			out.WriteByte('_')
		}
		out.WriteRune(c)
	}
	return strings.Replace(strings.ToUpper(out.String()), "CANCELED", "CANCELLED", 1)
}
