package streambench

import (
	"context"
	"io"
	"net/http"
	"net/http/pprof"
	"strconv"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/wire/sse"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// ServeRelay is the main function of a process with nothing but package upstream behind
// net/http's server: the lower bound of kvpilot's cost with a transport.
func ServeRelay(ctx context.Context, target string, out io.Writer) error {
	client := upstream.New(upstream.DefaultConfig(), upstream.Params{})
	to := upstream.Target{Replica: &replica.Replica{ID: "bench", URL: "http://" + target, Slots: []replica.Slot{0}}}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) { relay(client, to, w, r) })
	stopped := make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	go func() { stopped <- client.Run(running) }()
	err := serveLoopback(ctx, mux, out)
	stop()
	if ended := <-stopped; err == nil {
		err = ended
	}
	return err
}

func relay(client *upstream.Client, to upstream.Target, w http.ResponseWriter, r *http.Request) {
	body := make([]byte, max(r.ContentLength, 0))
	if _, err := io.ReadFull(r.Body, body); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	resp, err := client.Do(r.Context(), to, &upstream.Request{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Header: r.Header, Body: body})
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer resp.Close()
	for name, values := range resp.Header {
		w.Header()[name] = values
	}
	if resp.ContentLength >= 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	w.WriteHeader(resp.Status)
	flush := http.NewResponseController(w)
	var scan sse.Scanner
	scan.Reset(prompt.APIChat, resp.ContentLength < 0)
	for {
		b, err := resp.Next()
		if err != nil {
			return
		}
		scan.Feed(b)
		if _, err := w.Write(b); err != nil || flush.Flush() != nil {
			return
		}
	}
}
