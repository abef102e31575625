// Command limits measures how much state types have: fields, booleans, methods, function fields. Its test holds the repository to
// limits.txt, the list of types that are still too large, which may only shrink.
//
//	go run ./tools/limits          print the totals and each type above a limit
//	go run ./tools/limits -update  lower the numbers of limits.txt to those of today
package main

import (
	"flag"
	"fmt"
	"os"
)

const listFile = "tools/limits/limits.txt"

func main() {
	update := flag.Bool("update", false, "lower the numbers of "+listFile+" to those of today")
	flag.Parse()
	if err := run(*update); err != nil {
		fmt.Fprintln(os.Stderr, "limits:", err)
		os.Exit(1)
	}
}

func run(update bool) error {
	now, err := measure(".")
	if err != nil {
		return err
	}
	if update {
		return lower(listFile, now)
	}
	now.print(os.Stdout)
	return nil
}
