package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// told is what a client makes of a stream.
type told struct {
	Text, Finish string
	Usage        struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
	ids  []string
	done bool
}

// hear reads a stream, calling heard at each event with text.
func hear(body io.Reader, heard func()) (told, error) {
	var a told
	s := bufio.NewScanner(body)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		data, ok := strings.CutPrefix(s.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			a.done = true
			continue
		}
		var v struct {
			ID      string
			Choices []struct {
				Text     string
				Delta    struct{ Content string }
				Finish   string    `json:"finish_reason"`
				TokenIDs *[]uint32 `json:"token_ids"`
			}
			Usage *json.RawMessage
			Error *json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &v); err != nil || v.Error != nil {
			return a, fmt.Errorf("%s: %w", data, err)
		}
		if !slices.Contains(a.ids, v.ID) {
			a.ids = append(a.ids, v.ID)
		}
		for _, c := range v.Choices {
			if c.TokenIDs != nil {
				return a, fmt.Errorf("%s: nobody asked for ids", data)
			}
			if a.Text += c.Text + c.Delta.Content; c.Text+c.Delta.Content != "" {
				heard()
			}
			a.Finish += c.Finish
		}
		if v.Usage != nil {
			if err := json.Unmarshal(*v.Usage, &a.Usage); err != nil {
				return a, err
			}
		}
	}
	return a, s.Err()
}

// question is the nth client's request.
func question(n int) (path, body string) {
	if n%2 == 0 {
		return "/v1/chat/completions", fmt.Sprintf(`{"model":"sim","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"Question number %d"}]}`, n)
	}
	return "/v1/completions", fmt.Sprintf(`{"model":"sim","stream":true,"stream_options":{"include_usage":true},"max_tokens":%d,"prompt":"Story number %d"}`, 20+n%7, n)
}

// A replica that dies with many streams under way breaks none of them: each client gets the text, the
// finish reason and the counts that it would have got.
func TestNoStreamBreaksWhenAReplicaDies(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{replicas: 3, yaml: "router: {resume_streams: 1}\nchooser: {policy: round-robin}\n", engine: func(_ int, c *enginesim.Config) { c.MeanAnswer = 30 }})
	f.speed(50)
	type client struct {
		path, body string
		want, got  told
		heard      atomic.Bool
		err        error
	}
	var clients []*client
	for n := 0; len(clients) < 40; n++ {
		path, body := question(n)
		want, err := hear(bytes.NewReader(postTo(t, f.urls[1]+path, body).body), func() {})
		if err != nil || !want.done {
			t.Fatalf("%s: %+v, %v", body, want, err)
		}
		if ascii(want.Text) { // else a break inside a character may end a stream
			clients = append(clients, &client{path: path, body: body, want: want})
		}
	}
	f.speed(.05) // a token takes a fifth of a second
	var all sync.WaitGroup
	for _, c := range clients {
		all.Go(func() {
			resp, err := http.Post("http://"+f.http+c.path, "application/json", strings.NewReader(c.body))
			if err != nil {
				c.err = err
				return
			}
			defer resp.Body.Close()
			c.got, c.err = hear(resp.Body, func() { c.heard.Store(true) })
		})
	}
	f.eventually("every client has begun to hear", func() bool {
		return !slices.ContainsFunc(clients, func(c *client) bool { return !c.heard.Load() })
	})
	dying := f.engines[0].Stats()[0].Running
	f.engines[0].Restart(time.Hour)
	f.speed(50)
	all.Wait()
	for _, c := range clients {
		if c.err != nil || !c.got.done || c.got.Text != c.want.Text || c.got.Finish != c.want.Finish || c.got.Usage != c.want.Usage || len(c.got.ids) != 1 {
			t.Errorf("%s\n got %+v, %v\nwant %+v", c.body, c.got, c.err, c.want)
		}
	}
	if n := f.metric("kvpilot_router_resumes_total", `result="resumed"`); dying == 0 || n < 1 {
		t.Errorf("%v streams were resumed of %d that ran on the replica that died", n, dying)
	}
	f.settled()
}

// speed sets how fast the replicas write.
func (f *fleet) speed(x float64) {
	for _, e := range f.engines {
		e.SetSpeed(x)
	}
}

func ascii(text string) bool {
	for i := range len(text) {
		if text[i] >= 0x80 {
			return false
		}
	}
	return true
}

// A client may refuse.
func TestAClientMayRefuseThatItsStreamGoesOn(t *testing.T) {
	f := startFleet(t, fleetOptions{yaml: "router: {resume_streams: 1}\n", engine: func(_ int, c *enginesim.Config) { c.Core.Timing.Speed = 1 }})
	path, body := question(0)
	for _, c := range []struct {
		header string
		whole  bool
	}{{"on", true}, {"off", false}} {
		for _, e := range f.engines {
			e.SetFaults(enginesim.Faults{Where: enginesim.Where{Times: 1, Paths: []string{path}}, StreamFaults: enginesim.StreamFaults{DieAfter: 2}})
		}
		a := f.post(path, body, "x-kvpilot-resume", c.header)
		for _, e := range f.engines {
			e.SetFaults(enginesim.Faults{})
		}
		_, err := hear(bytes.NewReader(a.body), func() {})
		if a.err != nil || a.status != http.StatusOK || (err == nil) != c.whole {
			t.Errorf("x-kvpilot-resume: %s: %d %v %v\n%s", c.header, a.status, a.err, err, a.body)
		}
	}
	f.settled()
}
