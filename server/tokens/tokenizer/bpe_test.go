package tokenizer_test

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// pairEncoder is a byte-level byte-pair encoder, whose merges reach over line ends and spaces as those of current
// models do.
type pairEncoder struct {
	ranks    map[[2]uint32]uint32 // pair -> id of the merged token; lower ids were learned earlier
	pieces   []string             // id -> bytes
	specials []string
	special  map[string]uint32
	words    sync.Map // word -> []uint32, so that a word is merged once
}

// train learns up to merges merges from text. Specials are tokens that text is split at first.
func train(text string, merges int, specials ...string) *pairEncoder {
	t := &pairEncoder{ranks: map[[2]uint32]uint32{}, special: map[string]uint32{}}
	for i := range 256 {
		t.pieces = append(t.pieces, string([]byte{byte(i)}))
	}
	words := map[string]int{}
	for _, w := range split(text) {
		words[w]++
	}
	type word struct {
		ids   []uint32
		count int
	}
	var list []word
	for w, n := range words {
		list = append(list, word{t.bytes(w), n})
	}
	for range merges {
		pairs := map[[2]uint32]int{}
		for _, w := range list {
			for i := 1; i < len(w.ids); i++ {
				pairs[[2]uint32{w.ids[i-1], w.ids[i]}] += w.count
			}
		}
		var best [2]uint32
		most := 1
		for p, n := range pairs {
			if n > most || n == most && most > 1 && slices.Compare(p[:], best[:]) < 0 {
				best, most = p, n
			}
		}
		if most < 2 {
			break
		}
		id := uint32(len(t.pieces))
		t.pieces = append(t.pieces, t.pieces[best[0]]+t.pieces[best[1]])
		t.ranks[best] = id
		for i := range list {
			list[i].ids = merge(list[i].ids, best, id)
		}
	}
	for _, s := range specials {
		t.special[s] = uint32(len(t.pieces))
		t.pieces = append(t.pieces, s)
		t.specials = append(t.specials, s)
	}
	slices.SortFunc(t.specials, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return t
}

func (t *pairEncoder) bytes(s string) []uint32 {
	ids := make([]uint32, len(s))
	for i := range len(s) {
		ids[i] = uint32(s[i])
	}
	return ids
}

func merge(ids []uint32, pair [2]uint32, id uint32) []uint32 {
	out := ids[:0]
	for i := 0; i < len(ids); i++ {
		if i+1 < len(ids) && ids[i] == pair[0] && ids[i+1] == pair[1] {
			out = append(out, id)
			i++
			continue
		}
		out = append(out, ids[i])
	}
	return out
}

// Encode gives the ids of text.
func (t *pairEncoder) Encode(text string) []uint32 {
	var ids []uint32
	for text != "" {
		at, which := t.nextSpecial(text)
		for _, w := range split(text[:at]) {
			ids = append(ids, t.word(w)...)
		}
		if which != "" {
			ids = append(ids, t.special[which])
		}
		text = text[at+len(which):]
	}
	return ids
}

// nextSpecial finds the first special token, or the end.
func (t *pairEncoder) nextSpecial(text string) (int, string) {
	for at := 0; at < len(text); at++ {
		if c := text[at]; c != '<' && c != '[' {
			continue
		}
		for _, s := range t.specials {
			if strings.HasPrefix(text[at:], s) {
				return at, s
			}
		}
	}
	return len(text), ""
}

// word merges the bytes of one word, earliest learned pair first.
func (t *pairEncoder) word(w string) []uint32 {
	if ids, ok := t.words.Load(w); ok {
		return ids.([]uint32)
	}
	ids := t.merged(w)
	t.words.Store(w, ids)
	return ids
}

func (t *pairEncoder) merged(w string) []uint32 {
	ids := t.bytes(w)
	for {
		var best [2]uint32
		id := ^uint32(0)
		for i := 1; i < len(ids); i++ {
			p := [2]uint32{ids[i-1], ids[i]}
			if r, ok := t.ranks[p]; ok && r < id {
				best, id = p, r
			}
		}
		if id == ^uint32(0) {
			return ids
		}
		ids = merge(ids, best, id)
	}
}

// Decode gives the text of ids; unknown ids are dropped.
func (t *pairEncoder) Decode(ids []uint32) string {
	var b strings.Builder
	for _, id := range ids {
		if int(id) < len(t.pieces) {
			b.WriteString(t.pieces[id])
		}
	}
	return b.String()
}

// split cuts text into words: letters with the one sign before them, up to three digits,
// signs with the line ends behind them, line ends with the space before them, other space.
func split(text string) []string {
	var words []string
	for text != "" {
		n := wordLen(text)
		words = append(words, text[:n])
		text = text[n:]
	}
	return words
}

func wordLen(s string) int {
	r, n := utf8.DecodeRuneInString(s)
	next, _ := utf8.DecodeRuneInString(s[n:])
	switch {
	case unicode.IsLetter(r):
		return n + run(s[n:], unicode.IsLetter)
	case unicode.IsNumber(r):
		k := n
		for i := 0; i < 2 && k < len(s); i++ {
			d, size := utf8.DecodeRuneInString(s[k:])
			if !unicode.IsNumber(d) {
				break
			}
			k += size
		}
		return k
	case !isNewline(r) && n < len(s) && unicode.IsLetter(next):
		return n + run(s[n:], unicode.IsLetter)
	case isSign(r) || r == ' ' && n < len(s) && isSign(next):
		k := n + run(s[n:], isSign)
		return k + run(s[k:], isNewline)
	}
	space := run(s, unicode.IsSpace)
	if last := strings.LastIndexAny(s[:space], "\r\n"); last >= 0 {
		return last + 1
	}
	if space < len(s) && space > 1 {
		return space - 1 // the last space belongs to the next word
	}
	return max(space, n)
}

func run(s string, is func(rune) bool) int {
	for i, r := range s {
		if !is(r) {
			return i
		}
	}
	return len(s)
}

func isNewline(r rune) bool { return r == '\n' || r == '\r' }

func isSign(r rune) bool {
	return !unicode.IsSpace(r) && !unicode.IsLetter(r) && !unicode.IsNumber(r)
}
