package upstream

import (
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"io"
	"net/http"
	"testing"
	"time"
)

// An exchange that is under way keeps its time limits; the next one has the new ones.
func TestTimeLimitsChangeForTheNextExchange(t *testing.T) {
	goOn := make(chan struct{})
	target := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "2")
		io.WriteString(w, "a")
		w.(http.Flusher).Flush()
		var going <-chan struct{} // of the next exchange: it stalls until its client leaves
		if r.URL.Path == "/first" {
			going = goOn
		}
		select {
		case <-going:
			io.WriteString(w, "b")
		case <-r.Context().Done():
		}
	})
	eachRead(t, nil, func(t *testing.T, c *Client) {
		first := &Request{Method: http.MethodGet, Path: "/first"}
		began, err := c.Do(ctxFor(t), target, first)
		if err != nil {
			t.Fatal(err)
		}
		defer began.Close()
		if _, err := began.Next(); err != nil {
			t.Fatal(err)
		}
		next := DefaultConfig()
		next.StallTimeout = 50 * time.Millisecond
		if err := c.Update(next); err != nil {
			t.Fatal(err)
		}
		after, err := c.Do(ctxFor(t), target, &Request{Method: http.MethodGet, Path: "/next"})
		if err == nil {
			_, err = after.ReadAll(10)
			after.Close()
		}
		if got := Classify(nil, err); got != retry.Broken {
			t.Errorf("the next exchange ends as %v (%v), want it to stall", got, err)
		}
		time.Sleep(60 * time.Millisecond)
		select {
		case goOn <- struct{}{}:
		case <-time.After(5 * time.Second):
			t.Fatal("the first exchange is gone")
		}
		if b, err := began.Next(); err != nil || string(b) != "b" {
			t.Errorf("the exchange under way ends with %q, %v", b, err)
		}
		if err := c.Update(Config{}); err == nil {
			t.Error("wrong settings were taken")
		}
	})
}
