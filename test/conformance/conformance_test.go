// Package conformance compares what the official SDKs return through kvpilot with what they
// return from a replica directly, and runs the client packages' own tests. The SDKs are installed into .cache/conformance once.
package conformance

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/test/stack"
)

// TestMain lets more tests run at once than there are processors: they wait more than they compute.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8")
	os.Exit(m.Run())
}

// cache is where the SDKs are, or go.
func cache(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("installs SDKs; not with -short")
	}
	dir, err := filepath.Abs("../../.cache/conformance")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// install runs an installer, and skips the test when it cannot do its work.
func install(t *testing.T, have string, commands ...[]string) {
	t.Helper()
	if _, err := os.Stat(have); err == nil {
		return
	}
	for _, args := range commands {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
		out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
		cancel()
		if err != nil {
			t.Skipf("%s: %v: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
	}
}

func TestNodeSDKsSeeNoDifference(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(cache(t), "node")
	modules := filepath.Join(dir, "node_modules")
	install(t, filepath.Join(modules, "@anthropic-ai"), []string{"npm", "install", "--no-audit", "--no-fund", "--prefix", dir, "openai", "@anthropic-ai/sdk"})
	compare(t, "node", "openai.mjs", modules)
	broken(t, "node", "openai.mjs", modules)
}

func TestPythonSDKsSeeNoDifference(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(cache(t), "python")
	python := filepath.Join(dir, "bin", "python")
	install(t, filepath.Join(dir, "installed"), []string{"python3", "-m", "venv", dir}, []string{python, "-m", "pip", "install", "-q", "openai", "anthropic"},
		[]string{"touch", filepath.Join(dir, "installed")})
	compare(t, python, "openai_sdk.py")
	broken(t, python, "openai_sdk.py")
	faulty(t, []string{python, "openai_sdk.py"}, "unended", `{"no_done":true,"paths":["/v1/"]}`, map[string]string{
		"chat": `[["length",null]]`, "several choices": `[[["length",null]],[["length",null]],[["length",null]]]`, "completion": `[["length",null]]`,
	})
	faulty(t, []string{python, "openai_sdk.py"}, "half", `{"half_body":true,"paths":["/v1/chat/completions","/v1/completions","/v1/responses","/v1/messages"]}`, map[string]string{
		"chat": `502`, "completion": `502`, "response": `502`, "message": `[502,"InternalServerError"]`,
	})
	usages(t, python, "openai_sdk.py")
}

// faulty runs a script against a replica with a fault behind kvpilot, and compares what it saw.
func faulty(t *testing.T, command []string, mode, fault string, want map[string]string) {
	t.Helper()
	t.Run(mode, func(t *testing.T) {
		s := stack.Start(t, stack.Options{Replicas: 1})
		resp, err := http.Post(s.Replicas[0]+"/sim/faults", "application/json", strings.NewReader(fault))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		got := results(t, append(command, "http://"+s.HTTP, mode))
		for name, result := range want {
			if got[name] != result {
				t.Errorf("%s: %s, want %s", name, got[name], result)
			}
		}
	})
}

// usages has an Anthropic client talk for some turns, and streams without usage: the tokenization is
// not suspect, no more is cached than there is, and the router counts what it is not told.
func usages(t *testing.T, command ...string) {
	t.Helper()
	t.Run("told", func(t *testing.T) {
		s := stack.Start(t, stack.Options{Replicas: 1})
		if got := results(t, append(command, "http://"+s.HTTP, "told"))["turns"]; got != `[false,true,true,true]` {
			t.Errorf("the turns found cached tokens: %s", got)
		}
		m := metrics(t, s)
		prompt, cached := m[`kvpilot_router_tokens_total{kind="prompt",model="sim",source="engine"}`], m[`kvpilot_router_tokens_total{kind="cached",model="sim",source="engine"}`]
		if cached <= 0 || cached >= prompt || m[`kvpilot_tokenizer_parity_mismatches_total{model="sim"}`] != 0 {
			t.Errorf("%v of %v prompt tokens were cached, %v mismatches", cached, prompt, m[`kvpilot_tokenizer_parity_mismatches_total{model="sim"}`])
		}
	})
	t.Run("counted", func(t *testing.T) {
		s := stack.Start(t, stack.Options{Replicas: 1})
		body := `{"model":"sim","stream":true,"max_tokens":8,"messages":[{"role":"user","content":"` + strings.Repeat("word ", 400) + `"}]}`
		for range 3 {
			resp, err := http.Post("http://"+s.HTTP+"/v1/chat/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			time.Sleep(200 * time.Millisecond) // the engine's events arrive meanwhile
		}
		m := metrics(t, s)
		for name, least := range map[string]float64{`{kind="prompt",model="sim",source="router"}`: 1200, `{kind="output",model="sim",source="router"}`: 3} {
			if m["kvpilot_router_tokens_total"+name] < least {
				t.Errorf("%s is %v, want at least %v", name, m["kvpilot_router_tokens_total"+name], least)
			}
		}
		if n := m[`kvpilot_router_time_per_output_token_seconds_count{model="sim",route="chat",source="router"}`]; n == 0 {
			t.Error("no time per output token of streams without usage")
		}
		if n := m[`kvpilot_router_tokens_total{kind="prompt",model="sim",source="engine"}`]; n != 0 {
			t.Errorf("%v prompt tokens are said to be the engine's count", n)
		}
	})
}

// metrics reads the router's metrics by name and labels, those of scopes left out.
func metrics(t *testing.T, s *stack.Stack) map[string]float64 {
	t.Helper()
	resp, err := http.Get("http://" + s.Admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all := map[string]float64{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if n, err := strconv.ParseFloat(strings.Fields(value + " x")[0], 64); ok && err == nil {
			all[name] = n
		}
	}
	return all
}

// broken has the replica die in the middle of a stream of each kind. An SDK must raise an error of its own that
// says what happened: neither an end that looks like the answer's, nor a complaint about what it could not read.
func broken(t *testing.T, command ...string) {
	t.Helper()
	t.Run("broken streams", func(t *testing.T) {
		s := stack.Start(t, stack.Options{Replicas: 1})
		resp, err := http.Post(s.Replicas[0]+"/sim/faults", "application/json", strings.NewReader(`{"die_after":4,"paths":["/v1/"]}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		got := results(t, append(command, "http://"+s.HTTP, "broken"))
		if len(got) != 4 {
			t.Errorf("%d kinds of streams, want 4", len(got))
		}
		for name, result := range got {
			if result != `{"class":"APIError","said":true,"some":true}` && (name != "message" || result != `{"class":"APIStatusError","said":true,"some":true}`) {
				t.Errorf("%s: %s", name, result)
			}
		}
	})
}

// compare runs a script against the replica and against kvpilot before it.
func compare(t *testing.T, command ...string) {
	t.Helper()
	s := stack.Start(t, stack.Options{Replicas: 1})
	direct := results(t, append(command, s.Replicas[0]))
	through := results(t, append(command, "http://"+s.HTTP))
	if len(direct) < 10 || len(direct) != len(through) {
		t.Fatalf("%d cases directly, %d through kvpilot", len(direct), len(through))
	}
	for name, want := range direct {
		t.Run(name, func(t *testing.T) {
			if got := through[name]; got != want {
				t.Errorf("through kvpilot:\n%s\ndirectly:\n%s", clip(got), clip(want))
			}
			if strings.HasPrefix(want, `{"failed"`) {
				t.Errorf("the case fails directly too: %s", want)
			}
		})
	}
}

func clip(s string) string { return s[:min(len(s), 3000)] }

// results runs a script and reads its lines, by case and in canonical form.
func results(t *testing.T, command []string) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, problems.String())
	}
	byCase := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var line struct {
			Case   string         `json:"case"`
			Result jsontext.Value `json:"result"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		if err := line.Result.Canonicalize(); err != nil {
			t.Fatal(err)
		}
		byCase[line.Case] = string(line.Result)
	}
	return byCase
}
