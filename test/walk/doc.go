// Package walk runs the commands of README.md, docs/quickstart.md and other pages as a reader would: from top to bottom, in a shell,
// with processes of earlier commands still running. Its tests are in the package's test files.
//
// A fence in the language sh is a command. It has to end by itself within a minute, with exit code 0. A comment in the line before
// the fence changes that:
//
//	<!-- walk: until TEXT -->        it runs until the page ends; the next command waits for TEXT in its output
//	<!-- walk: prints TEXT -->       TEXT has to be in its output
//	<!-- walk: skip REASON -->       it is not run, but its kvpilot commands and their flags have to exist
//	<!-- walk: needs PROGRAM -->     it is skipped where PROGRAM is missing
//
// The addresses that a page names are replaced by free ones, and a decision's id by the id that was printed last.
package walk
