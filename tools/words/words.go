// Package words checks that comments, strings and documents use plain words: CONTRIBUTING.md has the list.
package words

import (
	"go/scanner"
	"go/token"
	"regexp"
	"strings"
)

// Hit is one banned word.
type Hit struct {
	Line int
	Word string
}

var banned = regexp.MustCompile(`(?i)\b(nobody|whoever|whomever|somebody|anybody|everybody|anew|(?:go|goes|going|gone|went) on|(?:give|gives|gave|giving|given) way|heed(?:s|ed|ing)?|meanwhile|in a row|beside|signs? of life|whole numbers?|(?:take|takes|took|taken|taking) over|told|tells?|telling)\b`)

// allowed are phrases with a banned word that are no part of our prose: prompts and names.
var allowed = regexp.MustCompile(`Tell me|AnyBody|json:"told`)

// InText returns the banned words of a document.
func InText(text string) []Hit {
	var hits []Hit
	for i, line := range strings.Split(text, "\n") {
		for _, word := range banned.FindAllString(allowed.ReplaceAllString(line, ""), -1) {
			hits = append(hits, Hit{i + 1, strings.ToLower(word)})
		}
	}
	return hits
}

// InGo returns the banned words in the comments and strings of a Go file. Names are a matter of review.
func InGo(src []byte) []Hit {
	var hits []Hit
	file := token.NewFileSet().AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	for {
		pos, kind, literal := s.Scan()
		if kind == token.EOF {
			return hits
		}
		if kind == token.COMMENT || kind == token.STRING {
			for _, hit := range InText(literal) {
				hits = append(hits, Hit{file.Line(pos) + hit.Line - 1, hit.Word})
			}
		}
	}
}
