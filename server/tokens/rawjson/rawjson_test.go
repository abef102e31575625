package rawjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// ids reads the list at the beginning of b.
func ids(b []byte, max int) ([]uint32, error) {
	s := rawjson.Trusted(b)
	list, ok := s.IDs(max)
	if ok != (s.Err() == nil) {
		return list, errors.New("the scanner's error and its result differ")
	}
	return list, s.Err()
}

func TestIDs(t *testing.T) {
	for in, want := range map[string][]uint32{
		"[]": {}, "[ ]": {}, "[1]": {1}, "[1,2]": {1, 2}, " [ 1 , 2 ]": {1, 2}, "[1, 2,\n3]": {1, 2, 3}, "[4294967295]": {1<<32 - 1}, "[0]": {0},
	} {
		if got, err := ids([]byte(in), 10); err != nil || !slices.Equal(got, want) {
			t.Errorf("IDs(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "1", "[", "[1", "[1,", "[1,]", "[1, ]", "[,1]", "[1 2]", "[-1]", "[1.0]", "[1e3]", "[4294967296]", "[99999999999999999999999]", `["1"]`, "[null]", "[[1]]", "[1,2,3,4,5,6,7,8,9,10,11]"} {
		if got, err := ids([]byte(bad), 10); err == nil {
			t.Errorf("IDs(%q) = %v, want an error", bad, got)
		}
	}
}

func TestIDsKeepTheirBound(t *testing.T) {
	text := rawjson.AppendUint32s(nil, someIDs(200))
	if _, err := ids(text, 200); err != nil {
		t.Errorf("as many as are allowed: %v", err)
	}
	if got, err := ids(text, 100); err == nil || len(got) > 100 {
		t.Errorf("%d ids, %v; want 100 and an error", len(got), err)
	}
}

// TestListsOfIDs compares the fast ways through lists with the simple one: texts of all lengths, with each kind of damage anywhere.
func TestListsOfIDs(t *testing.T) {
	dice := rand.New(rand.NewPCG(7, 7))
	damage := []string{"", "", "", ",", "0", "00", " ", "-", ".", "e", "x", "]", "[", "\x00", "\xff", "/", ":", "99999999"}
	for range 20_000 {
		some := make([]uint32, dice.IntN(60))
		for i := range some {
			some[i] = dice.Uint32() >> (10 + dice.IntN(22)*dice.IntN(2)) >> (dice.IntN(3) * dice.IntN(8))
		}
		text := rawjson.AppendUint32s(nil, some)
		at := dice.IntN(len(text) + 1)
		text = slices.Insert(text, at, []byte(damage[dice.IntN(len(damage))])...)
		if dice.IntN(8) == 0 {
			text = text[:dice.IntN(len(text)+1)]
		}
		list := text // IDs reads up to the list's end
		if end := bytes.IndexByte(text, ']'); end >= 0 {
			list = text[:end+1]
		}
		var want []uint32
		valid := json.Unmarshal(list, &want) == nil
		got, err := ids(text, 1<<20)
		if zeros := leadingZeros.Match(text); valid && err != nil || !valid && err == nil && !zeros || valid && !slices.Equal(got, want) {
			t.Fatalf("IDs(%q) = %v, %v; want %v, %v", text, got, err, want, valid)
		}
		s := rawjson.Scanner{Data: text}
		if skipped := s.SkipIDs(); skipped != compactIDs.Match(text) || skipped && string(text[:s.Pos]) != string(compactIDs.Find(text)) {
			t.Fatalf("SkipIDs(%q) = %v up to %d, want the match of %v", text, skipped, s.Pos, compactIDs)
		}
	}
}

var (
	compactIDs   = regexp.MustCompile(`^\[(0|[1-9][0-9]*)(,(0|[1-9][0-9]*))*\]`)
	leadingZeros = regexp.MustCompile(`[\[, ]0[0-9]`)
)

func TestMembers(t *testing.T) {
	var got []string
	err := rawjson.Members([]byte(` { "a" : [1,{"b":"}"}] , "q\"" :"x\\","n":null,"a":-1.5e3 }`), func(k string, v []byte) bool {
		got = append(got, k+"="+string(v))
		return true
	})
	if want := []string{`a=[1,{"b":"}"}]`, `q"="x\\"`, "n=null", "a=-1.5e3"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Members() = %q, %v; want %q", got, err, want)
	}
	for _, bad := range []string{"", "[", `{`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{a:1}`, `{"a":[1}}`, `{"a":"x}`, `{"a" 1}`, strings.Repeat(`{"a":`, 2000)} {
		if rawjson.Members([]byte(bad), func(string, []byte) bool { return true }) == nil {
			t.Errorf("Members(%.20q) is accepted", bad)
		}
	}
}

func TestForeignEncoding(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"nothing":               {"", ""},
		"UTF-8":                 {`{"a":"é"}`, ""},
		"UTF-8 with its mark":   {"\xEF\xBB\xBF{}", ""},
		"a short text":          {"7", ""},
		"UTF-16, little end":    {"\xFF\xFE{\x00}\x00", "UTF-16"},
		"UTF-16, big end":       {"\xFE\xFF\x00{\x00}", "UTF-16"},
		"UTF-16LE without mark": {"{\x00\"\x00", "UTF-16"},
		"UTF-16BE without mark": {"\x00{\x00}", "UTF-16"},
		"UTF-16 of one digit":   {"7\x00", "UTF-16"},
		"UTF-32, little end":    {"\xFF\xFE\x00\x00{\x00\x00\x00", "UTF-32"},
		"UTF-32, big end":       {"\x00\x00\xFE\xFF\x00\x00\x00{", "UTF-32"},
		"UTF-32LE without mark": {"{\x00\x00\x00", "UTF-32"},
		"UTF-32BE without mark": {"\x00\x00\x00{", "UTF-32"},
	} {
		if got := rawjson.ForeignEncoding([]byte(c.text)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestStrings(t *testing.T) {
	for _, s := range []string{"", "plain", "q\"b\\s/", "line\nends\r\n\ttab", "\x00\x1f\x7f", "é日本😀", "</script>"} {
		quoted := rawjson.AppendString(nil, s)
		var back string
		if err := json.Unmarshal(quoted, &back); err != nil || back != s {
			t.Errorf("AppendString(%q) = %s, which reads as %q, %v", s, quoted, back, err)
		}
		if got, err := rawjson.Unquote(quoted); err != nil || got != s {
			t.Errorf("Unquote(%s) = %q, %v", quoted, got, err)
		}
	}
}

// On what is JSON the walkers agree with encoding/json, on all else they must only end.
func FuzzWalk(f *testing.F) {
	for _, seed := range []string{`{"a":[1,2],"b":{"c":"\\\""}}`, `[1, 2,3]`, `{"a"`, `[[[`, `"\\`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		members, elements := map[string]string{}, []string{}
		errM := rawjson.Members(b, func(k string, v []byte) bool { members[k] = string(v); return true })
		errE := rawjson.Elements(b, func(v []byte) bool { elements = append(elements, string(v)); return true })
		list32, errI := ids(b, 1<<20)
		if !json.Valid(b) {
			return
		}
		var object map[string]json.RawMessage
		if json.Unmarshal(b, &object) == nil && object != nil {
			if errM != nil || len(members) != len(object) {
				t.Fatalf("members of %s: %v, %v", b, members, errM)
			}
		}
		var list []json.RawMessage
		if json.Unmarshal(b, &list) == nil && list != nil {
			if errE != nil || len(elements) != len(list) {
				t.Fatalf("elements of %s: %v, %v", b, elements, errE)
			}
		}
		var want []uint32
		if err := json.Unmarshal(b, &want); err == nil && want != nil && !strings.Contains(string(b), "null") {
			if errI != nil || !slices.Equal(list32, want) {
				t.Fatalf("ids of %s: %v, %v", b, list32, errI)
			}
		} else if errI == nil && err != nil {
			t.Fatalf("ids of %s: %v, but %v", b, list32, err)
		}
	})
}

// someIDs are spread like those of text: all lengths occur, in no order.
func someIDs(n int) []uint32 {
	dice := rand.New(rand.NewPCG(1, 2))
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(150_000 * math.Pow(dice.Float64(), 3))
	}
	return ids
}

func BenchmarkSkip60k(b *testing.B) {
	text := append(rawjson.AppendUint32s([]byte(`{"token_ids":`), someIDs(60_000)), '}')
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if err := rawjson.Members(text, func(string, []byte) bool { return true }); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkIDs60k(b *testing.B) {
	text := append(rawjson.AppendUint32s(nil, someIDs(60_000)), `,"features":null}`...)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if list, err := ids(text, 1<<20); err != nil || len(list) != 60_000 {
			b.Fatal(err)
		}
	}
}
