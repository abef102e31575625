package walk

import (
	"fmt"
	"regexp"
	"strings"
)

// command is one fence of a page.
type command struct {
	line int // of the page, where its text begins
	text string
	// how is the first word of the comment before it, what the rest: until, prints, skip or needs; empty without one.
	how, what string
}

var (
	directive = regexp.MustCompile(`^<!-- walk: (until|prints|skip|needs) (.+) -->$`)
	fence     = regexp.MustCompile("^```([a-z]*)$")
)

// commandsOf lists the sh fences of a page. A walk comment with no sh fence after it is an error, as is a fence without a language.
func commandsOf(page string) ([]command, error) {
	var list []command
	var now *command
	var how, what, language string
	within := false
	for i, line := range strings.Split(page, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case m != nil && within: // the fence ends
			within = false
			if now != nil {
				list = append(list, *now)
			}
			now = nil
		case within:
			if now != nil {
				now.text += line + "\n"
			}
		case m != nil:
			within, language = true, m[1]
			if language == "" {
				return nil, fmt.Errorf("line %d: a fence without a language; sh is run, text is not", i+1)
			}
			if language == "sh" {
				now = &command{line: i + 2, how: how, what: what}
				how, what = "", ""
			}
		case strings.HasPrefix(line, "<!-- walk:"):
			d := directive.FindStringSubmatch(line)
			if d == nil {
				return nil, fmt.Errorf("line %d: %s: want until, prints, skip or needs", i+1, line)
			}
			how, what = d[1], d[2]
			continue
		}
		if how != "" {
			return nil, fmt.Errorf("line %d: no sh fence follows the comment before it", i+1)
		}
	}
	return list, nil
}
