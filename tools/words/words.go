package main

import (
	"go/scanner"
	"go/token"
	"regexp"
	"strings"
)

// hit is one banned word, or one clause that stands for a noun.
type hit struct {
	line int
	word string
}

var banned = regexp.MustCompile(`(?i)\b(nobody|whoever|whomever|somebody|anybody|everybody|anew|(?:go|goes|going|gone|went) on|(?:give|gives|gave|giving|given) way|heed(?:s|ed|ing)?|meanwhile|in a row|beside|signs? of life|whole numbers?|(?:take|takes|took|taken|taking) over|told|tells?|telling)\b`)

// allowed are phrases with a banned word that are no part of our prose: prompts and names.
var allowed = regexp.MustCompile(`Tell me|AnyBody|json:"told`)

// inText returns the banned words of a document.
func inText(text string) []hit {
	var hits []hit
	for i, line := range strings.Split(text, "\n") {
		for _, word := range banned.FindAllString(allowed.ReplaceAllString(line, ""), -1) {
			hits = append(hits, hit{i + 1, strings.ToLower(word)})
		}
	}
	return hits
}

// inGo returns the banned words in the comments and strings of a Go file. Names are a matter of review.
func inGo(src []byte) []hit {
	var hits []hit
	file := token.NewFileSet().AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	for {
		pos, kind, literal := s.Scan()
		if kind == token.EOF {
			return hits
		}
		if kind == token.COMMENT || kind == token.STRING {
			for _, h := range inText(literal) {
				hits = append(hits, hit{file.Line(pos) + h.line - 1, h.word})
			}
		}
	}
}
