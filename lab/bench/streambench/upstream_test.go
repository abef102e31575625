package streambench

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
)

// post returns what the fake upstream answers to a body.
func post(t *testing.T, h http.Handler, path, body string) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	text, err := io.ReadAll(w.Result().Body)
	if err != nil || w.Code != http.StatusOK {
		t.Fatalf("%s: %d %v %s", path, w.Code, err, text)
	}
	return string(text)
}

// A router compares the ids that it was given with the tokens that the engine has counted.
func TestFakeCountsTheTokensItRendered(t *testing.T) {
	routes := newFake().routes()
	for _, size := range []int{1, 200, 100_000} {
		messages := `"messages":[{"role":"user","content":"` + strings.Repeat("x", size) + `"}]`
		var rendered struct {
			IDs []int `json:"token_ids"`
		}
		if err := json.Unmarshal([]byte(post(t, routes, "/v1/chat/completions/render", `{`+messages+`}`)), &rendered); err != nil {
			t.Fatal(err)
		}
		for _, stream := range []string{"true", "false"} {
			answer := post(t, routes, "/v1/chat/completions", `{"model":"bench","stream":`+stream+`,`+messages+`,"max_tokens":9}`)
			if stream == "true" {
				answer, _, _ = strings.Cut(strings.TrimPrefix(answer, "data: "), "\n\n")
			}
			var got struct {
				Usage struct {
					Prompt int `json:"prompt_tokens"`
				} `json:"usage"`
			}
			if err := json.Unmarshal([]byte(answer), &got); err != nil {
				t.Fatalf("%v in %s", err, answer)
			}
			if got.Usage.Prompt != len(rendered.IDs) {
				t.Errorf("%d bytes, stream %s: %d prompt tokens, but %d were rendered", size, stream, got.Usage.Prompt, len(rendered.IDs))
			}
		}
	}
}

// Streams keep their phases, however late they were asked for or served.
func TestTicksKeepTheirPhase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every, phase = 10 * time.Millisecond, 3 * time.Millisecond
		time.Sleep(1234567)
		tick := newTicks(every, phase)
		defer tick.timer.Stop()
		last := time.Now()
		for i, delay := range []time.Duration{0, 4 * time.Millisecond, 0, 25 * time.Millisecond, 10 * time.Millisecond, 0} {
			<-tick.timer.C
			now := time.Now()
			if at := now.UnixNano() % int64(every); at != int64(phase) {
				t.Errorf("tick %d at %v of its interval, want %v", i, time.Duration(at), phase)
			}
			if now.Sub(last) > every+25*time.Millisecond || !now.After(last) {
				t.Errorf("tick %d came %v after the one before", i, now.Sub(last))
			}
			last = now
			time.Sleep(delay)
			tick.next()
		}
	})
}
