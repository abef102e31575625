package main

import (
	"flag"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs the tests; some start this binary again as a process of its own.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		main()
		os.Exit(0)
	}
	_ = flag.Set("test.parallel", "2") // they wait more than they compute
	goleak.VerifyTestMain(m)
}
