package resume_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// story is an answer and what a client asked of it.
type story struct {
	dice  *rand.Rand
	api   prompt.API
	ids   []uint32
	stops openai.Stops
	usage bool
	// most is how many ids an event has at most.
	most int
}

// newStory makes one up: of few letters, so that strings repeat, and of characters of several tokens.
func newStory(seed uint64) *story {
	s := &story{dice: rand.New(rand.NewPCG(seed, 7)), api: prompt.APICompletions, most: 1}
	if s.dice.IntN(2) == 0 {
		s.api = prompt.APIChat
	}
	if s.dice.IntN(3) == 0 {
		s.most = 4
	}
	s.usage = s.dice.IntN(2) == 0
	alphabet := []string{"a", "b", "ab", "the ", " cat", "é", "你", "\n", "-", "😀"}
	if s.dice.IntN(3) == 0 {
		alphabet = alphabet[:3]
	}
	var text strings.Builder
	for range 1 + s.dice.IntN(60) {
		text.WriteString(alphabet[s.dice.IntN(len(alphabet))])
	}
	for words := text.String(); len(words) > 0; { // pieces as a tokenizer has them, cut anywhere
		n := min(len(words), 1+s.dice.IntN(9))
		s.ids = vocab.Encode(s.ids, words[:n])
		words = words[n:]
	}
	s.stops.Included = s.dice.IntN(2) == 0
	if s.dice.IntN(4) == 0 {
		s.stops.Least = s.dice.IntN(len(s.ids) + 1)
	}
	runes := []rune(text.String())
	for range 1 + s.dice.IntN(3) {
		at := s.dice.IntN(len(runes))
		one := string(runes[at:min(len(runes), at+1+s.dice.IntN(9))])
		if s.dice.IntN(4) == 0 {
			one += "!" // which does not come
		}
		s.stops.Strings = append(s.stops.Strings, one)
	}
	return s
}

// answer is what vLLM streams of ids: written after its detokenizer and its check of stop strings, in characters.
func (s *story) answer(t *testing.T, ids []uint32, api prompt.API, stops openai.Stops) []byte {
	t.Helper()
	var text, held []rune
	var pending []byte
	sent, lag := 0, 0
	for _, one := range stops.Strings {
		if !stops.Included {
			lag = max(lag, utf8.RuneCountInString(one)-1)
		}
	}
	var out []byte
	var batch []uint32
	first, size, finish, stop := true, 1+s.dice.IntN(s.most), "", "null"
	for i, id := range ids {
		batch = append(batch, id)
		pending = vocab.Decode(pending, []uint32{id}, true)
		before := len(text)
		for len(pending) > 0 && utf8.FullRune(pending) {
			r, n := utf8.DecodeRune(pending)
			text, pending = append(text, r), pending[n:]
		}
		if i == len(ids)-1 {
			finish = "length"
		}
		if end, which := endsIn(string(text), before, stops); which >= 0 && i+1 > stops.Least && len(text) > before {
			cut := end
			if !stops.Included {
				cut -= utf8.RuneCountInString(stops.Strings[which])
			}
			text, finish = text[:cut], "stop"
			stop = string(must(json.Marshal(stops.Strings[which])))
		}
		if len(batch) < size && finish == "" {
			continue
		}
		to := len(text)
		if finish == "" {
			to = max(sent, len(text)-lag)
		}
		held, sent = text[sent:to], to
		out = append(out, eventOf(api, string(held), batch, first, finish, stop)...)
		batch, size, first = batch[:0], 1+s.dice.IntN(s.most), false
		if finish != "" {
			break
		}
	}
	if s.usage {
		n := 0
		for event := range bytes.SplitSeq(out, []byte("\n\n")) {
			var c openai.Chunk
			if new(openai.Chunks).Read(bytes.TrimPrefix(event, []byte("data: ")), &c) {
				openai.EachID(c.IDs, func(uint32) bool { n++; return true })
			}
		}
		out = fmt.Appendf(out, `data: {"id":"e","object":"x","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":2,"total_tokens":%d,"completion_tokens":%d}}`+"\n\n", 2+n, n)
	}
	return append(out, "data: [DONE]\n\n"...)
}

// endsIn finds the string that ends first among those that end behind the first characters of text.
func endsIn(text string, before int, stops openai.Stops) (end, which int) {
	runes := []rune(text)
	for end = before + 1; end <= len(runes); end++ {
		for i, one := range stops.Strings {
			if strings.HasSuffix(string(runes[:end]), one) {
				return end, i
			}
		}
	}
	return 0, -1
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func eventOf(api prompt.API, text string, ids []uint32, first bool, finish, stop string) []byte {
	list := "[" + strings.ReplaceAll(strings.Trim(fmt.Sprint(ids), "[]"), " ", ",") + "]"
	said := must(json.Marshal(text))
	reason := "null"
	if finish != "" {
		reason = `"` + finish + `"`
	}
	head := `data: {"id":"e","object":"x","created":1,"model":"m","choices":[{"index":0,`
	if api == prompt.APIChat {
		begin, more := "", ""
		if first {
			begin = head + `"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,2]}` + "\n\n"
		}
		if finish != "" {
			more = `,"stop_reason":` + stop
		}
		return fmt.Appendf(nil, `%s%s"delta":{"content":%s},"logprobs":null,"finish_reason":%s%s,"token_ids":%s}]}`+"\n\n", begin, head, said, reason, more, list)
	}
	asked := "null"
	if first {
		asked = "[1,2]"
	}
	return fmt.Appendf(nil, `%s"text":%s,"logprobs":null,"finish_reason":%s,"stop_reason":%s,"prompt_token_ids":%s,"token_ids":%s}]}`+"\n\n", head, said, reason, stop, asked, list)
}

// seen is what a client makes of a stream with stop strings.
type seen struct {
	text, finish, stop string
	tokens             int
	done               bool
}

func look(t *testing.T, b []byte) (s seen) {
	t.Helper()
	s.tokens = -1
	for event := range bytes.SplitSeq(bytes.TrimSuffix(b, []byte("\n\n")), []byte("\n\n")) {
		data := bytes.TrimPrefix(event, []byte("data: "))
		if s.done || s.tokens >= 0 && string(data) != "[DONE]" {
			t.Fatalf("%s comes after the end of\n%s", data, b)
		}
		if string(data) == "[DONE]" {
			s.done = true
			continue
		}
		var c openai.Chunk
		if !new(openai.Chunks).Read(data, &c) || s.finish != "" && c.Choices > 0 {
			t.Fatalf("%s is no event, or comes after the finish reason", data)
		}
		s.text += string(openai.AppendText(nil, c.Text))
		if c.Finish != nil {
			s.finish, s.stop = string(c.Finish), string(c.Stop)
		}
		if c.Usage != nil {
			s.tokens = c.OutputTokens()
		}
	}
	return s
}

func texts(lists [][]uint32) ([]string, bool) {
	all := make([]string, len(lists))
	for i, ids := range lists {
		all[i] = decoded(ids)
	}
	return all, true
}

// check cuts the answer after each of its events, lets others resume it, which break off too, and compares what the client gets.
func (s *story) check(t *testing.T) (resumed, refused int) {
	whole := s.answer(t, s.ids, s.api, s.stops)
	want := look(t, whole)
	for cut := range bytes.Count(whole, []byte("\n\n")) {
		first := bytes.Join(bytes.SplitAfter(whole, []byte("\n\n"))[:cut+1], nil)
		if s.dice.IntN(3) == 0 { // inside an event
			first = append(bytes.Clone(first), whole[len(first):][:s.dice.IntN(len(whole)-len(first)+1)]...)
		}
		f := resume.New(resume.Params{API: s.api, Usage: s.usage, Stops: s.stops})
		out, err := f.Feed(bytes.Clone(first))
		out = bytes.Clone(out)
		for breaks := 0; err == nil; breaks++ {
			if end, ok := f.Ending(); ok {
				out = append(out, end...)
				break
			}
			p, ok := f.Point()
			if !ok {
				break
			}
			if !p.Sure && !p.Whole(decoded(p.Tail())) {
				refused++
				break
			}
			resumed++
			f.Resume(&p, texts)
			if p.Answer == len(s.ids) {
				t.Fatalf("a point behind the end of %+v", s)
			}
			rest := s.answer(t, s.ids[p.Answer:], prompt.APICompletions, openai.Stops{})
			if breaks < 3 && s.dice.IntN(2) == 0 {
				rest = rest[:s.dice.IntN(len(rest))]
			}
			for len(rest) > 0 && err == nil {
				n := min(len(rest), 1+s.dice.IntN(600))
				var piece []byte
				piece, err = f.Feed(bytes.Clone(rest[:n]))
				out = append(out, piece...)
				rest = rest[n:]
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("%+v, cut after %d events: %v\n%s", s, cut+1, err, out)
		}
		got := look(t, out)
		if got.done && got != want || !strings.HasPrefix(want.text, got.text) || !got.done && refused == 0 {
			t.Fatalf("%+v %q, cut after %d events:\n got %+v\nwant %+v\n%s", s, decoded(s.ids), cut+1, got, want, out)
		}
	}
	return resumed, refused
}

// Wherever a stream with stop strings is cut, and wherever a string ends it, the client has in the end what it would have had without the cut.
func TestStopStringsOfAStreamThatIsResumed(t *testing.T) {
	n := uint64(400)
	if testing.Short() || raceEnabled {
		n = 100
	}
	ended, resumes, refusals := 0, 0, 0
	for seed := range n {
		s := newStory(seed)
		resumed, refused := s.check(t)
		if refused > 0 && s.most == 1 {
			t.Fatalf("%+v is not resumed at %d points", s, refused)
		}
		resumes, refusals = resumes+resumed, refusals+refused
		if strings.Contains(string(s.answer(t, s.ids, s.api, s.stops)), `"stop"`) {
			ended++
		}
	}
	t.Logf("%d answers, %d ended by a string; resumed %d times, refused %d times", n, ended, resumes, refusals)
	if ended < int(n/3) || refusals*5 > resumes {
		t.Errorf("of %d answers %d ended by a string; resumed %d times, refused %d times", n, ended, resumes, refusals)
	}
}

func FuzzStops(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { newStory(seed).check(t) })
}

// What an engine decodes must be the end of the client's text and as many characters more as were held back.
func TestTheTextThatIsHeldBack(t *testing.T) {
	first := func(text string) []byte {
		return []byte(strings.Replace(first, `"text":"x"`, `"text":"`+text+`"`, 1))
	}
	stops := openai.Stops{Strings: []string{"1234"}} // three characters are held back
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"the text and what is held back": {"tea é12", true},
		"a first space is dropped":       {"ea é12", false}, // no space is missing here
		"a special token is shown":       {"tea é12</s>", false},
		"spaces were cleaned up":         {"teaé12", false},
		"less is held back":              {"tea é1", false},
		"another text":                   {"sea é12", false},
		"half a character":               {"tea é1\uFFFD", false},
		"nothing":                        {"", false},
	} {
		f := resume.New(resume.Params{Stops: stops})
		if _, err := f.Feed(first("tea ")); err != nil {
			t.Fatal(err)
		}
		p, ok := f.Point()
		if !ok || p.Sure || f.Resumable() || !slices.Equal(p.Tail(), []uint32{7}) {
			t.Fatalf("%s: Point() = %+v, %v; want one that is not sure", name, p, ok)
		}
		if got := p.Whole(c.text); got != c.want {
			t.Errorf("%s: Whole(%q) = %v", name, c.text, got)
		}
	}
	f := resume.New(resume.Params{Stops: stops})
	if _, err := f.Feed(first(" tea ")); err != nil {
		t.Fatal(err)
	}
	if p, _ := f.Point(); !p.Whole("tea é12") {
		t.Error("a first space that a tokenizer drops is missed")
	}
}

// Only as much of the answer is decoded as the text held back needs.
func TestTheTailOfALongAnswerIsShort(t *testing.T) {
	f := resume.New(resume.Params{Stops: openai.Stops{Strings: []string{strings.Repeat("x", 41)}}})
	if _, err := f.Feed([]byte(first)); err != nil {
		t.Fatal(err)
	}
	for range 5000 {
		if _, err := f.Feed([]byte(piece("word", "[1234]"))); err != nil {
			t.Fatal(err)
		}
	}
	p, ok := f.Point()
	if n := len(p.Tail()); !ok || n < 10 || n > 40 {
		t.Errorf("the tail of %d ids has %d", p.Answer, n)
	}
}

// A continuation whose tokens are not known cannot be searched as the engine would.
func TestAContinuationWithoutIDsIsNotSearched(t *testing.T) {
	f := resume.New(resume.Params{Stops: openai.Stops{Strings: []string{"q"}}})
	if _, err := f.Feed([]byte(first)); err != nil {
		t.Fatal(err)
	}
	p, _ := f.Point()
	if !p.Sure { // a string of one character holds nothing back
		t.Error("the point is not sure")
	}
	f.Resume(&p, nil)
	if out, err := f.Feed([]byte(piece("y", "null"))); !errors.Is(err, resume.ErrStrange) || len(out) > 0 {
		t.Errorf("Feed() = %q, %v", out, err)
	}
}
