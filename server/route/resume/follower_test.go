package resume_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine is a simulated replica that answers bodies, each once.
type engine struct {
	t      *testing.T
	url    string
	client *http.Client
	memory map[string][]byte
}

func start(t *testing.T, version string) *engine {
	t.Helper()
	cfg := enginesim.DefaultConfig()
	cfg.Version, cfg.MeanAnswer, cfg.Core.Timing.Speed = version, 12, 5
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e, err := enginesim.New(cfg, enginesim.Params{HTTP: ln})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := e.Run(ctx); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() { client.CloseIdleConnections(); cancel(); running.Wait() })
	return &engine{t: t, url: "http://" + ln.Addr().String(), client: client, memory: map[string][]byte{}}
}

func (e *engine) ask(path string, body []byte) []byte {
	e.t.Helper()
	if known, ok := e.memory[path+string(body)]; ok {
		return known
	}
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodPost, e.url+path, bytes.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := e.client.Do(req)
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		e.t.Fatalf("%s %s: %d %s %v", path, body, resp.StatusCode, text, err)
	}
	e.memory[path+string(body)] = text
	return text
}

// stream is what a client makes of its events.
type stream struct {
	text, finish string
	names        map[string]bool // id, created and model of its events
	usage        string
	finishes     int
	logprobs     string
	done         bool
}

func read(t *testing.T, b []byte) stream {
	t.Helper()
	s := stream{names: map[string]bool{}}
	for event := range strings.SplitSeq(strings.TrimSuffix(string(b), "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok || s.done {
			t.Fatalf("%q is no event of a stream, or comes after its end", event)
		}
		if data == "[DONE]" {
			s.done = true
			continue
		}
		var v struct {
			ID, Object, Model string
			Created           int64
			Choices           []struct {
				Index    int
				Text     string
				Delta    struct{ Content string }
				Finish   *string `json:"finish_reason"`
				Logprobs struct {
					Offsets []int     `json:"text_offset"`
					Values  []float64 `json:"token_logprobs"`
					Tokens  []string
					Top     []map[string]float64 `json:"top_logprobs"`
				}
			}
			Usage *struct {
				Prompt     int `json:"prompt_tokens"`
				Total      int `json:"total_tokens"`
				Completion int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		for _, c := range v.Choices {
			for i, token := range c.Logprobs.Tokens {
				s.logprobs += fmt.Sprintf("%d %q %v %v\n", c.Logprobs.Offsets[i], token, c.Logprobs.Values[i], c.Logprobs.Top[i])
			}
		}
		s.names[fmt.Sprint(v.ID, v.Object, v.Model, v.Created)] = true
		for _, c := range v.Choices {
			s.text += c.Text + c.Delta.Content
			if c.Finish != nil {
				s.finish = *c.Finish
				s.finishes++
			}
		}
		if v.Usage != nil {
			s.usage = fmt.Sprint(*v.Usage)
		}
	}
	return s
}

// followed is a request and its answer, whole, with ids.
type followed struct {
	req    *openai.Request
	params resume.Params
	path   string
	stream []byte
}

func (e *engine) follow(route openai.Route, body string) *followed {
	e.t.Helper()
	req, err := openai.Read(openai.Params{Route: route, Body: []byte(body)})
	if err != nil || !req.Continuation().ByText() {
		e.t.Fatalf("%s: %v, or it is not resumable", body, err)
	}
	f := &followed{req: req, path: route.Path(), params: resume.Params{API: req.Prompt.API, Usage: req.IncludeUsage}}
	f.params.Stops, _ = req.Stops()
	f.params.Logprobs = req.Logprobs()
	for end := time.Now().Add(time.Minute); bytes.Count(f.stream, []byte("data: ")) < 5; { // an engine that gets no processor sends many tokens at once
		if time.Now().After(end) {
			e.t.Fatalf("%s: the answer comes in too few events: %s", body, f.stream)
		}
		clear(e.memory)
		f.stream = e.ask(f.path, req.Edit(openai.IDsEdit()))
	}
	return f
}

// goOn asks the engine for the rest. It is false where the point lies inside a character.
func (e *engine) goOn(q *followed, f *resume.Follower, point *resume.Point) ([]byte, bool) {
	if !point.Sure && !point.Whole(decoded(point.Tail())) {
		return nil, false
	}
	stops, _ := q.req.Stops()
	limit := 4096
	if n := q.req.AnswerLimit(); n > 0 {
		limit = n - point.Answer
	}
	f.Resume(point, func(lists [][]uint32) ([]string, bool) {
		texts := make([]string, len(lists))
		for i, ids := range lists {
			texts[i] = decoded(ids)
		}
		return texts, true
	})
	return e.ask("/v1/completions", q.req.Continuation().Body(openai.Rest{
		Model: "sim", IDs: point.IDs, Limit: limit, Least: max(0, stops.Least-point.Answer), WithIDs: true,
	})), true
}

// decoded is what an engine's detokenizer makes of ids: a character that is not whole becomes U+FFFD.
func decoded(ids []uint32) string {
	return string(bytes.ToValidUTF8(vocab.Decode(nil, ids, true), []byte("\uFFFD")))
}

// feed gives a follower b in pieces of any size.
func feed(t *testing.T, dice *rand.Rand, f *resume.Follower, b []byte) (out []byte) {
	t.Helper()
	for len(b) > 0 {
		n := min(len(b), 1+dice.IntN(400))
		got, err := f.Feed(bytes.Clone(b[:n])) // which it may change
		if err == io.EOF {
			return append(out, got...)
		}
		if err != nil {
			t.Fatalf("Feed(%q) = %v", b[:n], err)
		}
		out = append(out, got...)
		b = b[n:]
	}
	return out
}

var (
	idLists = regexp.MustCompile(`token_ids":\[[0-9,]*\]`)
)

// Wherever a stream is cut, in whatever dialect, the client has in the end what it would have had
// without the cut: the same text, finish reason and counts under one name.
func TestAStreamIsWholeWhereverItIsCut(t *testing.T) {
	for _, version := range []string{"0.32.0", "0.12.0"} {
		e := start(t, version)
		for name, q := range map[string]*followed{
			"chat":                    e.follow(openai.RouteChat, `{"model":"sim","stream":true,"messages":[{"role":"user","content":"Tell me a Story."}]}`),
			"chat, usage":             e.follow(openai.RouteChat, `{"model":"sim","stream":true,"stream_options":{"include_usage":true},"max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`),
			"chat, running usage":     e.follow(openai.RouteChat, `{"model":"sim","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"messages":[{"role":"user","content":"hi there"}]}`),
			"completion":              e.follow(openai.RouteCompletions, `{"model":"sim","stream":true,"prompt":"Once upon a time","max_tokens":200,"temperature":0}`),
			"completion, usage":       e.follow(openai.RouteCompletions, `{"model":"sim","stream":true,"stream_options":{"include_usage":true},"prompt":[300,400,500]}`),
			"completion, logprobs":    e.follow(openai.RouteCompletions, `{"model":"sim","stream":true,"stream_options":{"include_usage":true},"prompt":"Once upon a time","max_tokens":200,"logprobs":2,"min_tokens":3}`),
			"characters of two bytes": e.accented(),
		} {
			t.Run(version+", "+name, func(t *testing.T) { e.t = t; e.everyCut(t, q) })
		}
	}
}

// accented finds a prompt whose answer has characters of several tokens.
func (e *engine) accented() *followed {
	for n := range 200 {
		q := e.follow(openai.RouteChat, fmt.Sprintf(`{"model":"sim","stream":true,"messages":[{"role":"user","content":"Number %d"}]}`, n))
		if s := read(e.t, q.stream); utf8.RuneCountInString(s.text) < len(s.text) {
			return q
		}
	}
	e.t.Fatal("no answer has a character of two bytes")
	return nil
}

func (e *engine) everyCut(t *testing.T, q *followed) {
	dice := rand.New(rand.NewPCG(1, 2))
	want := read(t, q.stream)
	resumed, refused := 0, 0
	step := 1
	if testing.Short() || raceEnabled {
		step = 5
	}
	for cut := len(q.stream); cut >= 0; cut -= step {
		f := resume.New(q.params)
		out := feed(t, dice, f, q.stream[:cut])
		if cut == len(q.stream) {
			if plain := idLists.ReplaceAll(q.stream, []byte(`token_ids":null`)); !bytes.Equal(out, plain) {
				t.Errorf("undisturbed, the client gets\n%s\nwant\n%s", out, plain)
			}
			continue
		}
		if len(out) == 0 {
			if point, ok := f.Point(); ok {
				t.Fatalf("cut at %d: a point at %+v before the first event", cut, point)
			}
			continue
		}
		breaks := 0
		for more := true; more; {
			more = false
			if end, ok := f.Ending(); ok {
				out = append(out, end...)
				break
			}
			point, ok := f.Point()
			if !ok {
				break // the end had come
			}
			rest, ok := e.goOn(q, f, &point)
			if !ok {
				refused++
				break
			}
			resumed++
			if breaks++; breaks == 1 && dice.IntN(2) == 0 { // the second replica dies also
				rest, more = rest[:dice.IntN(len(rest))], true
			}
			out = append(out, feed(t, dice, f, rest)...)
		}
		if got := read(t, out); got.done && (got.text != want.text || got.finish != want.finish || got.finishes != 1 || got.usage != want.usage || got.logprobs != want.logprobs || len(got.names) != 1) || !got.done && refused == 0 {
			t.Fatalf("cut at %d:\n got %+v\nwant %+v\n%s", cut, got, want, out)
		}
	}
	if resumed == 0 {
		t.Errorf("of %d cuts none was resumed, and %d refused", len(q.stream), refused)
	}
}

const first = `data: {"id":"a","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"x","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":[1,2],"token_ids":[7]}]}` + "\n\n"

func piece(text, ids string) string {
	return `data: {"id":"a","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"` + text + `","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":` + ids + `}]}` + "\n\n"
}

func TestTheSeam(t *testing.T) {
	for name, c := range map[string]struct {
		stream string
		want   string
		sure   bool
	}{
		"after one id":                        {first, "[1 2 7]", true},
		"ids without text are drawn again":    {first + piece("", "[8]") + piece("", "[9]"), "[1 2 7]", true},
		"text and one id settles all before":  {first + piece("", "[8]") + piece("é", "[9]"), "[1 2 7 8 9]", true},
		"several ids may end in a character":  {first + piece("ab", "[8,9]"), "[1 2 7 8 9]", false},
		"one id after several settles it":     {first + piece("ab", "[8,9]") + piece("c", "[10]"), "[1 2 7 8 9 10]", true},
		"text without an id of its own":       {first + piece("c", "[]"), "[1 2 7]", false},
		"half an event is not the client's":   {first + piece("c", "[8]")[:150], "[1 2 7]", true},
		"an id that only looks like an event": {first + piece(`data: {\"token_ids\":[5]}`, "[8]"), "[1 2 7 8]", true},
	} {
		t.Run(name, func(t *testing.T) {
			f := resume.New(resume.Params{Known: []uint32{1, 2, 3}})
			if _, err := f.Feed([]byte(c.stream)); err != nil {
				t.Fatal(err)
			}
			point, ok := f.Point()
			if got := fmt.Sprint(point.IDs); !ok || got != c.want || point.Sure != c.sure {
				t.Errorf("Point() = %s, sure %v, %v; want %s, %v", got, point.Sure, ok, c.want, c.sure)
			}
		})
	}
}

// Log probabilities that the client has cannot be drawn again, so their tokens cannot either.
func TestLogprobsOfATokenWithoutText(t *testing.T) {
	with := func(text, ids, offset, token string) string {
		return strings.Replace(piece(text, ids), `"logprobs":null`, `"logprobs":{"text_offset":[`+offset+`],"token_logprobs":[-1],"tokens":["`+token+`"],"top_logprobs":[{}]}`, 1)
	}
	f := resume.New(resume.Params{Logprobs: true})
	if _, err := f.Feed([]byte(first + with("tea", "[8]", "1", "tea"))); err != nil {
		t.Fatal(err)
	}
	if p, ok := f.Point(); !ok || !p.Sure || !f.Resumable() {
		t.Errorf("Point() = %+v, %v; want one that is sure", p, ok)
	}
	if _, err := f.Feed([]byte(with("", "[9]", "4", ""))); err != nil {
		t.Fatal(err)
	}
	if p, ok := f.Point(); !ok || p.Sure || f.Resumable() || p.Whole("xtea") {
		t.Errorf("Point() = %+v, %v; want one that cannot be resumed from", p, ok)
	}
	if _, err := f.Feed([]byte(with("é", "[10]", "4", "é"))); err != nil {
		t.Fatal(err)
	}
	p, ok := f.Point()
	if !ok || !p.Sure {
		t.Fatalf("Point() = %+v, %v; want one that is sure", p, ok)
	}
	f.Resume(&p, nil)
	out, err := f.Feed([]byte(with("!", "[11]", "0", "!")))
	if err != nil || !strings.Contains(string(out), `"text_offset":[5]`) {
		t.Errorf("Feed() = %s, %v; want the offset 5", out, err)
	}
}

// A parser in the engine sends an event for the ids alone where it has no text: nobody who did not ask
// for ids gets it, and from then on the text is compared before the stream goes on.
func TestAParserInTheEngine(t *testing.T) {
	delta := func(inner, ids string) string {
		return `data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":` + inner + `,"logprobs":null,"finish_reason":null,"token_ids":` + ids + `}]}` + "\n\n"
	}
	f := resume.New(resume.Params{})
	out, err := f.Feed([]byte(strings.Replace(delta(`{"role":"assistant","content":""}`, "null"), "}]}", `}],"prompt_token_ids":[1,2]}`, 1) +
		delta(`{"content":"tea "}`, "[3]") + delta(`{}`, "[4]")))
	if err != nil || strings.Contains(string(out), `"delta":{}`) {
		t.Fatalf("Feed() = %s, %v", out, err)
	}
	if point, ok := f.Point(); !ok || !point.Sure || point.Answer != 1 {
		t.Errorf("Point() = %+v, %v; want the one before the event without text", point, ok)
	}
	if _, err := f.Feed([]byte(delta(`{"content":"\u4f60\n"}`, "[5]"))); err != nil {
		t.Fatal(err)
	}
	point, ok := f.Point()
	if !ok || point.Sure || point.Answer != 3 {
		t.Fatalf("Point() = %+v, %v; want one after three ids that is not sure", point, ok)
	}
	for text, want := range map[string]bool{
		"tea 你\n": true, "\uFFFD a 你\n": true, "\uFFFD你\n": true, " 你\n": true, "tea 你\n<": false, "tea 你\n\uFFFD": false, "\uFFFD": false, "": false, "coffee, tea 你\n": false,
	} {
		if got := point.Whole(text); got != want {
			t.Errorf("Whole(%q) = %v, want %v", text, got, want)
		}
	}
}

func TestWhatIsNotFollowed(t *testing.T) {
	chat := func(delta, more string) string {
		return `data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":` + delta + `,"logprobs":null,"finish_reason":null,"token_ids":[1]}]` + more + "}\n\n"
	}
	for name, c := range map[string]struct {
		stream string
		want   resume.Lost
	}{
		"an engine that tells no ids":     {piece("x", "null"), resume.LostIDs},
		"ids of the answer only":          {piece("x", "[1]"), resume.LostIDs},
		"reasoning":                       {chat(`{"reasoning":"hm"}`, `,"prompt_token_ids":[1]`), resume.LostForm},
		"a tool call":                     {chat(`{"tool_calls":[{"index":0}]}`, `,"prompt_token_ids":[1]`), resume.LostForm},
		"a parser that hides its ids":     {strings.Replace(chat(`{}`, ""), "[1]", "null", 1), resume.LostForm},
		"a second choice":                 {strings.Replace(first, `"index":0`, `"index":1`, 1), resume.LostForm},
		"log probabilities":               {strings.Replace(first, `"logprobs":null`, `"logprobs":{"content":[]}`, 1), resume.LostForm},
		"another event":                   {"event: ping\n\n", resume.LostForm},
		"what is no JSON":                 {"data: nonsense\n\n", resume.LostForm},
		"other line ends":                 {"data: {}\r\n\r\n", resume.LostForm},
		"an error about the request":      {`data: {"error":{"message":"no","code":400}}` + "\n\n", resume.LostForm},
		"more tokens than are remembered": {strings.Replace(first, "[1,2]", "["+strings.Repeat("1,", resume.MaxTokens)+"1]", 1), resume.LostSize},
	} {
		t.Run(name, func(t *testing.T) {
			f := resume.New(resume.Params{})
			out, err := f.Feed([]byte(c.stream))
			if err != nil {
				t.Fatal(err)
			}
			want := string(idLists.ReplaceAll([]byte(c.stream), []byte(`token_ids":null`)))
			if string(out) != want {
				t.Errorf("the client gets %q, want %q", out, want)
			}
			if _, ok := f.Point(); ok || f.Lost() != c.want {
				t.Errorf("Point() = %v, Lost() = %q, want %q", ok, f.Lost(), c.want)
			}
		})
	}
}

func TestAnEnginesWordOfItsFailureIsNotPassedOn(t *testing.T) {
	for _, fault := range []string{
		`data: {"error":{"message":"dead","type":"InternalServerError","param":null,"code":500}}` + "\n\ndata: [DONE]\n\n",
		`data: {"error":{"message":"dead","code":"server_error"}}` + "\n\n",
	} {
		f := resume.New(resume.Params{})
		out, err := f.Feed([]byte(first + fault))
		if !errors.Is(err, resume.ErrFailed) || bytes.Contains(out, []byte("dead")) || bytes.Contains(out, []byte("DONE")) || len(out) == 0 {
			t.Errorf("Feed() = %q, %v; want the first event and ErrFailed", out, err)
		}
		if _, ok := f.Point(); !ok {
			t.Error("there is no point")
		}
	}
}

func TestAContinuationOfAnotherFormIsRefused(t *testing.T) {
	for name, c := range map[string]string{
		"no event":        "event: x\n\n",
		"no JSON":         "data: x\n\n",
		"other line ends": "data: {}\r\n\r\n",
		"a tool call":     `data: {"id":"b","choices":[{"index":0,"text":"x","tool_calls":[1],"token_ids":[1]}]}` + "\n\n",
		"usage without counts, of ids that were not told": piece("x", "null") +
			`data: {"id":"b","choices":[],"usage":{"prompt_tokens":3}}` + "\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			f := resume.New(resume.Params{})
			if _, err := f.Feed([]byte(first)); err != nil {
				t.Fatal(err)
			}
			point, _ := f.Point()
			f.Resume(&point, nil)
			if _, err := f.Feed([]byte(c)); !errors.Is(err, resume.ErrStrange) {
				t.Errorf("Feed() = %v, want ErrStrange", err)
			}
		})
	}
}

// The first event of a long prompt is large; its memory is given back.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	known := make([]uint32, 50_000)
	var ids strings.Builder
	for i := range known {
		known[i] = uint32(i)
		fmt.Fprintf(&ids, ",%d", i)
	}
	f := resume.New(resume.Params{Known: known})
	large := strings.Replace(first, "[1,2]", "["+ids.String()[1:]+"]", 1)
	for len(large) > 0 {
		n := min(len(large), 32<<10)
		if _, err := f.Feed([]byte(large[:n])); err != nil {
			t.Fatal(err)
		}
		large = large[n:]
	}
	if s, ok := f.Point(); !ok || len(s.IDs) != len(known)+1 {
		t.Fatalf("Point() = %d ids, %v", len(s.IDs), ok)
	}
	one := []byte(piece("word", "[1234]"))
	buf := make([]byte, len(one))
	n := testing.AllocsPerRun(1000, func() {
		copy(buf, one)
		if out, err := f.Feed(buf); err != nil || len(out) == 0 {
			t.Fatal(err)
		}
	})
	if n >= 1 { // less: the list of ids doubles now and then
		t.Errorf("%v allocations per event", n)
	}
}

func BenchmarkFeed(b *testing.B) {
	f := resume.New(resume.Params{})
	if _, err := f.Feed([]byte(first)); err != nil {
		b.Fatal(err)
	}
	one := []byte(piece("word", "[1234]"))
	buf := make([]byte, len(one))
	b.ReportAllocs()
	b.SetBytes(int64(len(one)))
	for b.Loop() {
		copy(buf, one)
		if _, err := f.Feed(buf); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFirstEvent is what following costs before the first token of a prompt of 100,000.
func BenchmarkFirstEvent(b *testing.B) {
	known := make([]uint32, 100_000)
	ids := make([]byte, 0, 1<<20)
	for i := range known {
		known[i] = uint32(20_000 + i)
		ids = fmt.Appendf(ids, ",%d", known[i])
	}
	event := []byte(strings.Replace(first, "[1,2]", "["+string(ids[1:])+"]", 1))
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		f := resume.New(resume.Params{Known: known})
		for rest := event; len(rest) > 0; {
			n := min(32<<10, len(rest))
			if _, err := f.Feed(rest[:n]); err != nil {
				b.Fatal(err)
			}
			rest = rest[n:]
		}
	}
}

// Of several ids that came together the last ones may have no text yet, because a character is not complete: these are drawn again.
func TestAPartOfACharacterIsDrawnAgain(t *testing.T) {
	f := resume.New(resume.Params{Known: []uint32{1, 2, 3}})
	if _, err := f.Feed([]byte(first + piece("ab", "[8,9,10]"))); err != nil {
		t.Fatal(err)
	}
	p, _ := f.Point()
	if got := fmt.Sprint(p.Tails()); p.Sure || got != "[[7 8 9 10] [7 8 9] [7 8]]" {
		t.Fatalf("the tails are %s, sure %v", got, p.Sure)
	}
	if other, _ := f.Point(); other.Settle([]string{"xab\uFFFD", "xabc", "xabcd"}) {
		t.Error("texts that the client does not have settle the point")
	}
	if !p.Settle([]string{"hellonope\uFFFD", "ab", "b"}) || fmt.Sprint(p.IDs) != "[1 2 7 8 9]" {
		t.Fatalf("the point is at %v", p.IDs)
	}
	f.Resume(&p, nil)
	if out, err := f.Feed([]byte(strings.ReplaceAll(piece("ï", "[11]"), `"prompt_token_ids":null,`, ""))); err != nil || !strings.Contains(string(out), "ï") {
		t.Errorf("%q, %v", out, err)
	}
	if p, ok := f.Point(); !ok || fmt.Sprint(p.IDs) != "[1 2 7 8 9 11]" {
		t.Errorf("the next point is at %v", p.IDs)
	}
}
