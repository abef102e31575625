package peers

import (
	"log/slog"
	"os"
	"strings"
	"sync"
)

// lines is a log that says when its first line has come.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
	some chan struct{}
}

func (l *lines) logger() *slog.Logger {
	l.some = make(chan struct{})
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (l *lines) first() <-chan struct{} { return l.some }

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text.Len() == 0 {
		close(l.some)
	}
	return l.text.Write(p)
}

// String is all that was logged, without its quotes' escapes.
func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.ReplaceAll(l.text.String(), `\"`, `"`)
}

func writeFile(name, text string) error { return os.WriteFile(name, []byte(text), 0o600) }
