package vocab

import "strings"

// The special tokens, after the 256 single bytes.
const (
	EndOfText uint32 = 256 + iota
	Begin
	TurnStart
	TurnEnd
	ThinkStart
	ThinkEnd
	ToolCall
	ToolCallEnd
	ToolResponse
	ToolResponseEnd
	VisionStart
	VisionEnd
	ImagePad
	lastSpecial
)

// specials holds the special tokens' text, in the order of their ids.
var specials = [...]string{
	"<|endoftext|>", "<|begin_of_text|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>",
	"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
	"<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
}

const (
	printable  = '~' - ' ' + 1
	letters    = 27 // a to z and the space
	firstPair  = 512
	firstThree = firstPair + printable*printable
	// Size is the number of ids; all of them are below it.
	Size = firstThree + letters*letters*letters
)

// EncodePrompt gives the ids of text; special tokens written in the text become their ids, and
// addSpecial puts Begin in front.
func EncodePrompt(text string, addSpecial bool) []uint32 {
	ids := make([]uint32, 0, len(text)/3+4)
	if addSpecial {
		ids = append(ids, Begin)
	}
	return Encode(ids, text)
}

// Encode appends the ids of text to dst.
func Encode(dst []uint32, text string) []uint32 {
	for text != "" {
		at, id, size := nextSpecial(text)
		dst = encodePlain(dst, text[:at])
		if size == 0 {
			return dst
		}
		dst = append(dst, id)
		text = text[at+size:]
	}
	return dst
}

// nextSpecial finds the first special token in text; size 0 says that there is none.
func nextSpecial(text string) (at int, id uint32, size int) {
	for from := 0; ; {
		i := strings.IndexByte(text[from:], '<')
		if i < 0 {
			return len(text), 0, 0
		}
		at := from + i
		for n, s := range specials {
			if strings.HasPrefix(text[at:], s) {
				return at, EndOfText + uint32(n), len(s)
			}
		}
		from = at + 1
	}
}

// encodePlain splits text into words and encodes each.
func encodePlain(dst []uint32, text string) []uint32 {
	for text != "" {
		n := wordLen(text)
		dst = encodeWord(dst, text[:n])
		text = text[n:]
	}
	return dst
}

type class uint8

const (
	classSpace class = iota
	classLetter
	classDigit
	classOther
)

func classOf(b byte) class {
	switch {
	case b == ' ' || b == '\n' || b == '\t' || b == '\r':
		return classSpace
	case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= 0x80:
		return classLetter
	case b >= '0' && b <= '9':
		return classDigit
	}
	return classOther
}

// wordLen is the length of the first word: one optional space, then a run of one class. The
// last space before a word belongs to that word.
func wordLen(s string) int {
	i := 0
	if s[0] == ' ' && len(s) > 1 && classOf(s[1]) != classSpace {
		i = 1
	}
	c := classOf(s[i])
	j := i + 1
	for j < len(s) && classOf(s[j]) == c {
		j++
	}
	if c == classSpace && j < len(s) && s[j-1] == ' ' && j-i > 1 {
		j--
	}
	return j
}

func encodeWord(dst []uint32, w string) []uint32 {
	for w != "" {
		if len(w) >= 3 {
			a, b, c := letter(w[0]), letter(w[1]), letter(w[2])
			if a >= 0 && b >= 0 && c >= 0 {
				dst = append(dst, uint32(firstThree+(a*letters+b)*letters+c))
				w = w[3:]
				continue
			}
		}
		if len(w) >= 2 && isPrintable(w[0]) && isPrintable(w[1]) {
			dst = append(dst, uint32(firstPair+int(w[0]-' ')*printable+int(w[1]-' ')))
			w = w[2:]
			continue
		}
		dst = append(dst, uint32(w[0]))
		w = w[1:]
	}
	return dst
}

// letter numbers the characters of triples; -1 for all others.
func letter(b byte) int {
	switch {
	case b == ' ':
		return 0
	case b >= 'a' && b <= 'z':
		return int(b-'a') + 1
	}
	return -1
}

func isPrintable(b byte) bool { return b >= ' ' && b <= '~' }

// Decode appends the text of ids to dst. Unknown ids give nothing. With skipSpecial, the
// tokens that separate turns and mark images give nothing either.
func Decode(dst []byte, ids []uint32, skipSpecial bool) []byte {
	for _, id := range ids {
		dst = appendToken(dst, id, skipSpecial)
	}
	return dst
}

func appendToken(dst []byte, id uint32, skipSpecial bool) []byte {
	switch {
	case id < 256:
		return append(dst, byte(id))
	case id < lastSpecial:
		if skipSpecial && (id <= TurnEnd || id >= VisionStart) {
			return dst // the tags of thoughts and tools are text, as in the models that use them
		}
		return append(dst, specials[id-EndOfText]...)
	case id < firstPair:
		return dst
	case id < firstThree:
		n := id - firstPair
		return append(dst, byte(n/printable)+' ', byte(n%printable)+' ')
	case id < Size:
		n := id - firstThree
		return append(dst, unletter(n/(letters*letters)), unletter(n/letters%letters), unletter(n%letters))
	}
	return dst
}

func unletter(n uint32) byte {
	if n == 0 {
		return ' '
	}
	return byte(n-1) + 'a'
}

// Capital reports whether the id's text begins with a capital letter.
func Capital(id uint32) bool {
	b := byte(0)
	switch {
	case id < 256:
		b = byte(id)
	case id >= firstPair && id < firstThree:
		b = byte((id-firstPair)/printable) + ' '
	}
	return b >= 'A' && b <= 'Z'
}
