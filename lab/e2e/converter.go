package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/server/tokens/messages"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

//go:embed converter.py
var converterScript []byte

// made is how many chats, and how many requests, checkConverter makes up.
const made = 3000

var signed = regexp.MustCompile(`"signature":"[0-9a-f]{32}"`)

// converter is vLLM's code in a process of its own: it answers each line with one of its own, a JSON string.
type converter struct {
	in  *bufio.Writer
	out *bufio.Scanner
}

func (c *converter) ask(job string) (answer string, err error) {
	if _, err := c.in.WriteString(job + "\n"); err != nil {
		return "", err
	}
	if err := c.in.Flush(); err != nil {
		return "", err
	}
	for c.out.Scan() {
		if json.Unmarshal(c.out.Bytes(), &answer) == nil { // anything else is a line of a log
			return answer, nil
		}
	}
	return "", errors.Join(errors.New("vLLM's converter ended"), c.out.Err())
}

// checkConverter: the router makes the chat of a message, and the events of the chunks of its answer, as vLLM's own code does.
func (r *answers) checkConverter(ctx context.Context) (string, error) {
	file := filepath.Join(r.logs, "converter.py")
	if err := os.WriteFile(file, converterScript, 0o600); err != nil {
		return "", err
	}
	cmd := proc.Command(ctx, r.python, file)
	log, err := os.Create(filepath.Join(r.logs, "converter.log"))
	if err != nil {
		return "", err
	}
	defer log.Close()
	cmd.Stderr = log
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	c := &converter{bufio.NewWriter(in), bufio.NewScanner(out)}
	c.out.Buffer(nil, 1<<20)
	dice := dice{rand.New(rand.NewPCG(1, 2))}
	for range made {
		if err := c.compareEvents(dice.chunks()); err != nil {
			return "", err
		}
	}
	translated := 0
	for range made {
		ok, err := c.compareRequest(dice.message())
		if err != nil {
			return "", err
		}
		if ok {
			translated++
		}
	}
	if translated < made/4 {
		return "", fmt.Errorf("only %d of %d requests were translated", translated, made)
	}
	return fmt.Sprintf("the events of %d chats are vLLM's; of %d requests %d are translated, as vLLM does", made, made, translated), nil
}

func (c *converter) compareEvents(chunks []string) error {
	want, err := c.ask(`{"chunks":[` + strings.Join(chunks, ",") + `]}`)
	if err != nil {
		return err
	}
	var s messages.Stream
	got, err := s.Write([]byte("data: "+strings.Join(chunks, "\n\ndata: ")+"\n\ndata: [DONE]\n\n"), 20)
	if g, w := signed.ReplaceAllString(string(got), ""), signed.ReplaceAllString(want, ""); err != nil || g != w {
		return fmt.Errorf("of the chunks\n%s\nthe router makes\n%s%w\nand vLLM\n%s", strings.Join(chunks, "\n"), g, err, w)
	}
	return nil
}

// compareRequest is false for a message that the router does not translate.
func (c *converter) compareRequest(body string) (translated bool, err error) {
	parsed, err := openai.Read(openai.Params{Route: openai.RouteMessages, Body: []byte(body)})
	if err != nil {
		return false, err
	}
	chat, ok := messages.Chat(&parsed.Prompt, []byte(body))
	if !ok {
		return false, nil
	}
	differs, err := c.ask(`{"message":` + body + `,"chat":` + string(chat) + `}`)
	if err == nil && differs != "" {
		err = fmt.Errorf("the message\n%s\nas a chat\n%s\n%s", body, chat, differs)
	}
	return true, err
}

// dice make up chats and requests.
type dice struct{ *rand.Rand }

func (d dice) one(list ...string) string { return list[d.IntN(len(list))] }

func (d dice) text() string {
	return d.one(`""`, `"a"`, `"é\n"`, `"{"`, `"}"`, `"\"x\":1"`, `"{}"`, `" "`, `"1"`, `"\u0001\\"`, `"😀"`)
}

// chunks makes up one chat.
func (d dice) chunks() []string {
	const head = `"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m",`
	list := []string{`{` + head + `"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":{"prompt_tokens":20,"total_tokens":20,"completion_tokens":0}}`}
	calls := 0
	for range d.IntN(14) {
		var delta []string
		if d.IntN(3) == 0 {
			delta = append(delta, `"reasoning":`+d.text())
		}
		if d.IntN(2) == 0 {
			delta = append(delta, `"content":`+d.one(d.text(), "null"))
		}
		if d.IntN(3) == 0 {
			var entries []string
			for range 1 + d.IntN(2) {
				if d.IntN(2) == 0 {
					entries = append(entries, fmt.Sprintf(`{"id":"c%d","type":"function","index":%d,"function":{"name":"f%d"%s}}`, calls, calls, calls, d.one("", `,"arguments":`+d.text())))
					calls++
				} else {
					entries = append(entries, fmt.Sprintf(`{"index":%d,"function":{"arguments":%s}}`, d.IntN(calls+1), d.text()))
				}
			}
			delta = append(delta, `"tool_calls":[`+strings.Join(entries, ",")+`]`)
		}
		list = append(list, `{`+head+`"choices":[{"index":0,"delta":{`+strings.Join(delta, ",")+`},"logprobs":null,"finish_reason":null,"token_ids":null}]}`)
	}
	if d.IntN(12) == 0 {
		return append(list, `{"error":{"message":"no \"x\"","type":"x","param":null,"code":`+d.one("400", "401", "403", "404", "413", "422", "429", "500", "503")+`}}`)
	}
	return append(list,
		`{`+head+`"choices":[{"index":0,"delta":{`+d.one("", `"content":"end"`, `"content":""`)+`},"logprobs":null,"finish_reason":`+d.one(`"stop"`, `"length"`, `"tool_calls"`)+`,"stop_reason":`+d.one("null", `"END"`, "5")+`,"token_ids":null}]}`,
		`{`+head+`"choices":[],"usage":{"prompt_tokens":20,"total_tokens":25,"completion_tokens":`+d.one("5", "0")+
			d.one("", `,"prompt_tokens_details":null`, `,"prompt_tokens_details":{"cached_tokens":16}`, `,"prompt_tokens_details":{"cached_tokens":8,"created_cache_tokens":4}`, `,"prompt_tokens_details":{"cached_tokens":null}`)+`}}`)
}

// message makes up a request that vLLM accepts.
func (d dice) message() string {
	members := []string{`"model":"m"`, `"stream":true`, `"max_tokens":` + d.one("1", "50")}
	for _, m := range []string{
		`"system":` + d.one(d.text(), `[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"a"},{"type":"text","text":`+d.text()+`,"cache_control":{"type":"ephemeral"}}]`),
		`"temperature":` + d.one("1", "0.5", "null"), `"top_p":0.9`, `"top_k":` + d.one("5", "null"), `"stop_sequences":` + d.one(`["x","é"]`, "[]", "null"), `"metadata":{"user_id":"u"}`,
		`"thinking":` + d.one(`{"type":"adaptive"}`, "null", `{"type":"disabled"}`), `"output_config":` + d.one(`{"effort":"low"}`, `{}`, "null"), `"cache_salt":"salt"`, `"chat_template_kwargs":{"a":1}`,
	} {
		if d.IntN(4) == 0 {
			members = append(members, m)
		}
	}
	if d.IntN(2) == 0 {
		members = append(members, `"tools":[{"name":"f"`+d.one("", `,"description":"d"`, `,"description":null`)+`,"input_schema":`+d.one(`{}`, `{"type":"object","properties":{"a":{"type":"string"}}}`, `{"properties":{}}`)+d.one("", "", `,"strict":true`, `,"cache_control":{"type":"ephemeral"}`)+`}]`)
		if d.IntN(2) == 0 {
			members = append(members, `"tool_choice":{"type":`+d.one(`"auto"`, `"none"`, `"any"`, `"tool","name":"f"`)+d.one("", `,"disable_parallel_tool_use":true`, `,"disable_parallel_tool_use":false`)+`}`)
		}
	}
	var turns []string
	for range 1 + d.IntN(3) {
		turns = append(turns, `{"role":"user","content":`+d.one(d.text(), d.blocks(`{"type":"text","text":`+d.text()+`}`, `{"type":"tool_result","tool_use_id":"t","content":`+d.one(d.text(), `[{"type":"text","text":`+d.text()+`},{"type":"text","text":"b"}]`, "null")+`}`))+`}`)
		if d.IntN(2) == 0 {
			turns = append(turns, `{"role":"assistant","content":`+d.one(d.text(), d.blocks(`{"type":"text","text":`+d.text()+`}`, `{"type":"thinking","thinking":`+d.text()+`,"signature":"s"}`,
				`{"type":"tool_use","id":"t","name":"f","input":`+d.one("{}", `{"a":[1,"é",null,true],"b":{"c":"\n"}}`, `{"x":1.5}`)+`}`, `{"type":"redacted_thinking","data":"x"}`))+`}`)
		}
	}
	return `{` + strings.Join(append(members, `"messages":[`+strings.Join(turns, ",")+`]`), ",") + `}`
}

// blocks are up to three of them.
func (d dice) blocks(of ...string) string {
	var list []string
	for range 1 + d.IntN(3) {
		list = append(list, d.one(of...))
	}
	return `[` + strings.Join(list, ",") + `]`
}
