package main

import (
	"regexp"
	"slices"
	"strings"
)

var (
	// pronoun begins a clause or a phrase that stands for a noun.
	pronoun = regexp.MustCompile(`(?i)\b(?:(?:those|the ones?)\s+(?:that|which|who|whose|of|with|without|in|at|from|to|for|under|behind|by|about|among|beyond|on|it|they|kvpilot)|that\s+(?:of|which))\b`)
	what    = regexp.MustCompile(`(?i)\bwhat\b`)
	lexeme  = regexp.MustCompile("[\\w'’-]+|`code`|[^\\w\\s]")
	stop    = regexp.MustCompile(`[.!?](?:\s|$)`)
)

// asking are the words after which "what" begins an indirect question.
var asking = wordSet(`ask asks asked asking check checks checked decide decides decided deciding describe describes described determine determines
	explain explains explained know knows knew known learn learns learned say says said saying see sees seen show shows shown showing
	state states understand understands clear unclear unknown question questions guess guesses matter`)

// joined are pairs of words after which "what" begins an indirect question.
var joined = wordSet(`find-out finds-out found-out finding-out look-at depend-on depends-on depending-on depended-on know-of regardless-of regard-to question-of say-of says-of
	asked-for matter-of`)

// conjunctions are the words, and "that of" after them is no pronoun.
var conjunctions = wordSet(`so such says say means mean shows show sees see knows know ensures`)

// questions are the words that begin an indirect question.
var questions = wordSet(`what who which where when why how whether if`)

func wordSet(words string) map[string]bool {
	set := map[string]bool{}
	for _, word := range strings.Fields(words) {
		set[word] = true
	}
	return set
}

// inPassage returns the clauses that stand for a noun.
func inPassage(p passage) []hit {
	var hits []hit
	add := func(at int) {
		words := strings.Fields(p.text[at:])
		line := p.line + strings.Count(p.text[:at], "\n")
		hits = append(hits, hit{line, strings.Trim(strings.Join(words[:min(3, len(words))], " "), ",.;:")})
	}
	for _, at := range pronoun.FindAllStringIndex(p.text, -1) {
		if !isConjunction(p.text, at) {
			add(at[0])
		}
	}
	for _, at := range what.FindAllStringIndex(p.text, -1) {
		if isNoun(p.text, at) {
			add(at[0])
		}
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return a.line - b.line })
	return hits
}

// isConjunction reports whether "that of" begins a clause after "so", "says" and the like, or is "that of course".
func isConjunction(text string, at []int) bool {
	if !strings.EqualFold(text[at[0]:at[0]+4], "that") {
		return false
	}
	before := lexeme.FindAllString(text[:at[0]], -1)
	return len(before) > 0 && conjunctions[strings.ToLower(before[len(before)-1])] || strings.HasPrefix(strings.TrimSpace(text[at[1]:]), "course")
}

// isNoun reports whether the "what" at these offsets begins a subject or an object, and not a question, direct or indirect.
func isNoun(text string, at []int) bool {
	begin, end := 0, len(text)
	for _, s := range stop.FindAllStringIndex(text, -1) {
		if s[0] < at[0] {
			begin = s[1]
		} else {
			end = s[0] + 1
			break
		}
	}
	before := lexeme.FindAllString(strings.ToLower(text[begin:at[0]]), -1)
	after := lexeme.FindAllString(strings.ToLower(text[at[1]:end]), -1)
	if len(after) == 0 || strings.HasSuffix(strings.TrimRight(text[begin:end], " *_"), "?") {
		return false
	}
	if next := after[0]; next == "to" || next == "if" || next == "kind" || !isWord(next) {
		return false
	}
	if len(before) == 0 {
		return true
	}
	if text[at[0]] == 'W' && isWord(before[len(before)-1]) {
		return false // a name
	}
	switch last := before[len(before)-1]; last {
	case `"`, "“", "[", "'":
		return false
	case "and", "or", "but", ",", "nor":
		return !asks(before)
	default:
		return !asking[last] && !questions[last] && (len(before) < 2 || !joined[before[len(before)-2]+"-"+last])
	}
}

func isWord(token string) bool {
	return token == "`code`" || token[0] >= 'a' && token[0] <= 'z' || token[0] >= '0' && token[0] <= '9'
}

// asks reports whether an indirect question has begun among the words, which another one may continue.
func asks(words []string) bool {
	for i, word := range words {
		if i > 0 && (questions[word] && asking[words[i-1]] || asking[word] && i == len(words)-2 && words[len(words)-1] != ",") {
			return true
		}
		if i > 1 && questions[word] && joined[words[i-2]+"-"+words[i-1]] {
			return true
		}
	}
	return len(words) > 1 && questions[words[len(words)-2]]
}
