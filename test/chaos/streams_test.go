//go:build unix

package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	openStreams = 100
	answerSize  = 300 // tokens: some seconds
)

// answer is what a client made of one stream.
type answer struct {
	replica string // the first one
	tokens  int    // as the usage at the end counts them
	took    time.Duration
	err     error
}

// stream reads one chat answer to its end, and calls first at its first text.
func (p *process) stream(n int, first func()) (a answer) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	defer func() { a.took = time.Since(began) }()
	defer func() {
		if first != nil {
			first()
		}
	}()
	body := fmt.Sprintf(`{"model":"sim","messages":[{"role":"user","content":"%d: tell me a story"}],"max_tokens":%d,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`, n, answerSize)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		a.err = err
		return a
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		a.err = err
		return a
	}
	defer resp.Body.Close()
	a.replica = resp.Header.Get("X-Kvpilot-Replica")
	done := false
	for lines := bufio.NewReader(resp.Body); ; {
		line, err := lines.ReadString('\n')
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		var event struct {
			Choices []struct{ Delta struct{ Content string } }
			Usage   *struct {
				Completion int `json:"completion_tokens"`
			}
			Error json.RawMessage
		}
		switch {
		case data == "[DONE]":
			done = true
		case ok && json.Unmarshal([]byte(data), &event) != nil, event.Error != nil:
			a.err = fmt.Errorf("the stream has the event %s", data)
			return a
		case event.Usage != nil:
			a.tokens = event.Usage.Completion
		}
		if first != nil && len(event.Choices) > 0 && event.Choices[0].Delta.Content != "" {
			first()
			first = nil
		}
		if err == io.EOF && !done {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			if !done {
				a.err = err
			}
			return a
		}
	}
}

// idOf is how the router names the replica at url.
func (p *process) idOf(url string) string {
	p.t.Helper()
	resp, err := http.Get(p.url + "/kvpilot/v1/replicas")
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	var list struct {
		Replicas []struct {
			ReplicaID string `json:"replica_id"`
			URL       string
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		p.t.Fatal(err)
	}
	for _, r := range list.Replicas {
		if r.URL == url {
			return r.ReplicaID
		}
	}
	p.t.Fatalf("the router does not know %s: %v", url, list)
	return ""
}

// TestStreamsOutliveTheirReplica holds at default settings: of a hundred streams none is lost when a quarter of their replicas
// dies, or hangs.
func TestStreamsOutliveTheirReplica(t *testing.T) {
	for name, c := range map[string]struct {
		strike func(*process)
		within time.Duration // until the last stream has ended, in addition to four times an undisturbed one's time
	}{
		"kill":                       {func(p *process) { p.Signal(syscall.SIGKILL) }, 20 * time.Second},
		"stop":                       {func(p *process) { p.Signal(syscall.SIGSTOP) }, 30 * time.Second},
		"hang behind a good /health": {func(p *process) { p.fault(`{"stall":true}`) }, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			var replicas []*process
			for range 4 {
				replicas = append(replicas, simulate(t, "0"))
			}
			router := serve(t, replicas, "--set", "telemetry.log_level=error")
			began := time.Now()
			if a := router.stream(-1, nil); a.err != nil {
				t.Fatal(a.err)
			}
			alone := time.Since(began)
			answers := make([]answer, openStreams)
			var begun, wait sync.WaitGroup
			begun.Add(openStreams)
			for n := range openStreams {
				wait.Go(func() { answers[n] = router.stream(n, begun.Done) })
			}
			begun.Wait()
			struckID := router.idOf(replicas[1].url)
			c.strike(replicas[1])
			struck := time.Now()
			wait.Wait()
			last, lost, there := time.Since(struck), 0, 0
			for n, a := range answers {
				if a.replica == struckID {
					there++
				}
				if a.err != nil || a.tokens != answerSize {
					lost++
					t.Logf("stream %d of %s: %d tokens in %s, %v", n, a.replica, a.tokens, a.took, a.err)
				}
			}
			t.Logf("%d streams, %d of them at the replica that was struck: %d lost, the last one ended %s later (one alone takes %s)", openStreams, there, lost, last, alone)
			if lost > 0 || there < openStreams/8 || last > 4*alone+c.within {
				t.Error("streams were lost, too few were at that replica, or the last one came too late")
			}
		})
	}
}
