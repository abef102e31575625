package doctor

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The page lists every check, with the question that the program prints.
func TestThePageListsTheChecks(t *testing.T) {
	page, err := os.ReadFile("../../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, c := range localChecks() {
		if names[c.name] = true; !strings.Contains(string(page), fmt.Sprintf("| `%s` | %s |", c.name, c.what)) {
			t.Errorf("the page does not say of %s: %s", c.name, c.what)
		}
		for _, need := range append(c.needs, c.after...) {
			if !names[need] {
				t.Errorf("%s needs %s, which is no check before it", c.name, need)
			}
		}
	}
}
