// Command words checks that comments, strings and documents use plain words, which CONTRIBUTING.md lists, and that a noun stands
// where a noun can: no clause that begins with "what", "those that", "that of" or "the one that" is a subject or an object. Its test
// holds the repository to clauses.txt, the number of such clauses that each folder still has, which may only shrink.
//
//	go run ./tools/words [FOLDER]  print the clauses, of one folder or of all
//	go run ./tools/words -update   lower the numbers of clauses.txt to those of today
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
)

const listFile = "tools/words/clauses.txt"

func main() {
	update := flag.Bool("update", false, "lower the numbers of "+listFile+" to those of today")
	flag.Parse()
	if err := run(*update, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
		os.Exit(1)
	}
}

func run(update bool, folder string) error {
	now, err := count(".")
	if err != nil {
		return err
	}
	if update {
		return lower(listFile, now)
	}
	for _, dir := range slices.Sorted(maps.Keys(now)) {
		if folder != "" && dir != folder {
			continue
		}
		for _, clause := range now[dir] {
			fmt.Println(clause)
		}
	}
	return nil
}
