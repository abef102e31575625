package console

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
)

//go:embed page
var embedded embed.FS

const (
	refresh    = time.Second
	maxViewers = 64
	maxPrompt  = 1 << 20
)

// Console serves the page. Make one with New.
type Console struct {
	source  Source
	history *History
	viewers chan struct{}

	mu   sync.Mutex
	at   time.Time // guarded by mu
	text []byte    // the state at that time; guarded by mu
}

// New makes a Console. history may be shared with the goroutines that feed it.
func New(source Source, history *History) *Console {
	return &Console{source: source, history: history, viewers: make(chan struct{}, maxViewers)}
}

// Handler serves /console and what is below it.
func (c *Console) Handler() (http.Handler, error) {
	page, err := fs.Sub(embedded, "page")
	if err != nil {
		return nil, fmt.Errorf("console page: %w", err)
	}
	mux := http.NewServeMux()
	files := http.StripPrefix("/console/", http.FileServerFS(page))
	mux.HandleFunc("GET /console", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/console/", http.StatusMovedPermanently)
	})
	mux.HandleFunc("GET /console/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-cache")
		files.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /console/api/state", func(w http.ResponseWriter, _ *http.Request) { writeRaw(w, c.state()) })
	mux.HandleFunc("GET /console/api/watch", c.watch)
	mux.HandleFunc("GET /console/api/history", c.hour)
	mux.HandleFunc("GET /console/api/explain", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, c.source.Explain(r.URL.Query().Get("id")))
	})
	mux.HandleFunc("GET /console/api/traces", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, c.source.Traces()) })
	mux.HandleFunc("POST /console/api/choose", c.choose)
	return mux, nil
}

// state is the present state as JSON, made at most once a second for all viewers together.
func (c *Console) state() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.text != nil && now.Sub(c.at) < refresh*9/10 {
		return c.text
	}
	s := c.source.State()
	s.At, s.History, s.Minute = now, c.history.lastSeconds(now), c.history.lastMinute(now)
	text, err := json.Marshal(s)
	if err != nil {
		text = []byte(`{}`) // a state is plain numbers and texts; the page shows that it got none
	}
	c.at, c.text = now, text
	return text
}

// hour answers with the last hour in coarse steps.
func (c *Console) hour(w http.ResponseWriter, _ *http.Request) {
	step, points := c.history.lastHour(time.Now())
	writeJSON(w, http.StatusOK, struct {
		Step   int      `json:"step"`
		Points []Second `json:"points"`
	}{step, points})
}

// watch sends the state once a second as server-sent events, until the viewer leaves.
func (c *Console) watch(w http.ResponseWriter, r *http.Request) {
	select {
	case c.viewers <- struct{}{}:
		defer func() { <-c.viewers }()
	default:
		writeJSON(w, http.StatusServiceUnavailable, map[string]string{"error": "too many consoles are connected to this router"})
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	control := http.NewResponseController(w)
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	for {
		if _, err := fmt.Fprintf(w, "data: %s\n\n", c.state()); err != nil {
			return
		}
		if err := control.Flush(); err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}

// choose is a dry run: where would this prompt go, and why?
func (c *Console) choose(w http.ResponseWriter, r *http.Request) {
	var ask struct {
		Model string          `json:"model"`
		Text  string          `json:"text"`
		Body  json.RawMessage `json:"body"`
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPrompt))
	if err == nil {
		err = json.Unmarshal(text, &ask)
	}
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]string{"error": "the request must be a JSON object of at most 1 MiB"})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
	defer cancel()
	d, err := c.source.DryRun(ctx, ask.Model, ask.Text, ask.Body)
	if err != nil {
		public := apierror.From(err)
		writeJSON(w, public.HTTPStatus(), map[string]string{"error": public.Message})
		return
	}
	writeJSON(w, http.StatusOK, Full{Decision: d})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{"error":"the answer could not be written"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the viewer may be gone
}

func writeRaw(w http.ResponseWriter, text []byte) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // the viewer may be gone
}
