package directory_test

import (
	"flag"
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/kvpilot/kvpilot/server/fleet/directory"
	"github.com/kvpilot/kvpilot/server/fleet/directory/directorytest"
)

var coordinator = flag.String("coordinator", "", "base URL of a running coordinator of LMCache; empty: the stand-in")

// BenchmarkLookup asks a coordinator about prompts.
func BenchmarkLookup(b *testing.B) {
	url := *coordinator
	if url == "" {
		s := httptest.NewServer(new(directorytest.LMCache))
		defer s.Close()
		url = s.URL
	}
	for _, n := range []int{4096, 32_768, 131_072} {
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) {
			d, q := asking(b, url, nil), query(prompt(n))
			for b.Loop() {
				if a := d.Find(b.Context(), q); a == nil || a.Result != directory.Miss && a.Result != directory.Hit {
					b.Fatalf("%s", held(a))
				}
			}
		})
	}
}
