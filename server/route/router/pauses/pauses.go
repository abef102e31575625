package pauses

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// Replicas remembers which replicas may be paused over HTTP. It is safe for concurrent use; the zero value knows none.
type Replicas struct {
	mu   sync.Mutex
	life map[replica.ID]lives // guarded by mu
}

// lives is the knowledge about a replica.
type lives struct {
	life     uint64
	pausable bool
}

// mostPausable bounds the replicas that are remembered.
const mostPausable = 4096

// pauseTimeout bounds one question about a pause. A replica that does not answer is taken not to be paused.
const pauseTimeout = time.Second

// Watch watches one answer. A nil *Watch watches nothing.
type Watch struct {
	client *upstream.Client
	rep    *replica.Replica
	// before is how many answers the engine had aborted when this one was asked for; -1: the replica cannot be paused. It is set
	// before ready is closed.
	before int
	ready  chan struct{}
}

// Watch begins to watch an answer that the replica is about to be asked for. Its goroutine ends with ctx.
func (p *Replicas) Watch(ctx context.Context, client *upstream.Client, rep *replica.Replica) *Watch {
	p.mu.Lock()
	known, ok := p.life[rep.ID]
	p.mu.Unlock()
	if ok && known.life == rep.Life && !known.pausable {
		return nil
	}
	w := &Watch{client: client, rep: rep, before: -1, ready: make(chan struct{})}
	go func() {
		defer close(w.ready)
		status, _ := w.get(ctx, rep.URL, "/is_paused")
		if status == 0 {
			return
		}
		p.note(rep, status == http.StatusOK)
		if status == http.StatusOK {
			w.before = w.aborts(ctx)
		}
	}()
	return w
}

// note remembers whether a replica can be paused.
func (p *Replicas) note(rep *replica.Replica, yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life == nil || len(p.life) >= mostPausable {
		p.life = map[replica.ID]lives{} // replicas come and go: it is learned again
	}
	p.life[rep.ID] = lives{rep.Life, yes}
}

// Wait waits until the goroutine of the watch has ended.
func (w *Watch) Wait() {
	if w != nil {
		<-w.ready
	}
}

// Aborted reports whether the replica was paused or put to sleep and has aborted answers since the watch began.
func (w *Watch) Aborted(ctx context.Context) bool {
	if w == nil {
		return false
	}
	select {
	case <-w.ready:
	case <-ctx.Done():
		return false
	}
	return w.before >= 0 && (w.says(ctx, "/is_paused", "is_paused") || w.says(ctx, "/is_sleeping", "is_sleeping")) && w.aborts(ctx) > w.before
}

// says reports whether a route answers that a state holds.
func (w *Watch) says(ctx context.Context, path, member string) bool {
	status, body := w.get(ctx, w.rep.URL, path)
	return status == http.StatusOK && bytes.Contains(bytes.ReplaceAll(body, []byte(" "), nil), []byte(`"`+member+`":true`))
}

// aborts counts the answers that the engine aborted, by its metrics; -1 when they do not show it.
func (w *Watch) aborts(ctx context.Context) int {
	status, page := w.get(ctx, w.rep.Metrics(), "/metrics")
	if status != http.StatusOK {
		return -1
	}
	count := -1
	for line := range bytes.Lines(page) {
		if !bytes.HasPrefix(line, []byte("vllm:request_success_total{")) || !bytes.Contains(line, []byte(`finished_reason="abort"`)) {
			continue
		}
		text := bytes.TrimSpace(line[bytes.LastIndexByte(line, '}')+1:])
		if n, err := strconv.ParseFloat(string(text), 64); err == nil {
			count = max(count, 0) + int(n)
		}
	}
	return count
}

// maxPage bounds an answer about a pause.
const maxPage = 8 << 20

// get asks the replica; status 0 when it does not answer.
func (w *Watch) get(ctx context.Context, base, path string) (status int, body []byte) {
	ctx, cancel := context.WithTimeout(ctx, pauseTimeout)
	defer cancel()
	rep := &replica.Replica{ID: w.rep.ID, URL: base, APIKey: w.rep.APIKey, TLS: w.rep.TLS}
	resp, err := w.client.Do(ctx, upstream.Target{Replica: rep}, &upstream.Request{Method: http.MethodGet, Path: path})
	if err != nil {
		return 0, nil
	}
	defer resp.Close()
	if body, err = resp.ReadAll(maxPage); err != nil {
		return 0, nil
	}
	return resp.Status, body
}
