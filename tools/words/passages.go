package main

import (
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"strings"
)

// passage is text that is read as a whole: a paragraph, an item, a cell of a table, a comment. Its lines are the file's lines.
type passage struct {
	line int // of its first line, from 1
	text string
}

// passages returns the prose of a file, without code and headings. Files of other kinds than Go, proto and Markdown have none.
func passages(name string, src []byte) []passage {
	switch path.Ext(name) {
	case ".md":
		return markdown(string(src))
	case ".go":
		return comments(src)
	case ".proto":
		return protoComments(string(src))
	}
	return nil
}

// collector joins consecutive lines to passages.
type collector struct {
	done []passage
	open bool
}

func (c *collector) end() { c.open = false }

func (c *collector) add(line int, text string) {
	if c.open {
		c.done[len(c.done)-1].text += "\n" + text
		return
	}
	c.done, c.open = append(c.done, passage{line, text}), true
}

var (
	codeSpan = regexp.MustCompile("`[^`]*`")
	target   = regexp.MustCompile(`\]\([^)]*\)`)
	item     = regexp.MustCompile(`^\s*(?:[-*]|\d+\.)\s+`)
	title    = regexp.MustCompile(`^\s*\*\*[^*]*\*\*`) // a bold beginning is a heading
	rule     = regexp.MustCompile(`^\s*\|[\s:|-]+\|\s*$`)
)

func markdown(text string) []passage {
	var c collector
	lines := strings.Split(text, "\n")
	fenced := false
	for i, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			c.end()
			continue
		}
		if fenced || strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			c.end()
			continue
		}
		line = target.ReplaceAllString(codeSpan.ReplaceAllString(line, "`code`"), "](link)")
		if strings.HasPrefix(strings.TrimSpace(line), "|") {
			header := i+1 < len(lines) && rule.MatchString(lines[i+1])
			if !header && !rule.MatchString(line) {
				for _, cell := range strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|") {
					c.end()
					c.add(i+1, title.ReplaceAllString(cell, ""))
				}
			}
			c.end()
			continue
		}
		if begin := item.FindString(line); begin != "" {
			c.end()
			line = line[len(begin):]
		}
		if !c.open {
			line = title.ReplaceAllString(line, "")
		}
		c.add(i+1, line)
	}
	return c.done
}

func comments(src []byte) []passage {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, "", src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil // the compiler reports it
	}
	var c collector
	for _, group := range parsed.Comments {
		c.end()
		for _, comment := range group.List {
			for i, line := range strings.Split(strings.TrimSuffix(strings.TrimLeft(comment.Text, "/*"), "*/"), "\n") {
				c.comment(files.Position(comment.Pos()).Line+i, line)
			}
		}
	}
	return c.done
}

// comment adds a comment's line, without its slashes.
func (c *collector) comment(number int, line string) {
	switch trimmed := strings.TrimSpace(line); {
	case trimmed == "", strings.HasPrefix(trimmed, "# "), strings.HasPrefix(line, "\t"), strings.HasPrefix(line, "    "),
		strings.HasPrefix(line, "go:"), strings.HasPrefix(line, "nolint"):
		c.end()
		return
	case item.MatchString(line):
		c.end()
	}
	c.add(number, line)
}

func protoComments(text string) []passage {
	var c collector
	for i, line := range strings.Split(text, "\n") {
		code, comment, found := strings.Cut(line, "//")
		if !found || strings.TrimSpace(code) != "" {
			c.end()
		}
		if found {
			c.comment(i+1, comment)
		}
	}
	return c.done
}
