package members

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"

	"golang.org/x/time/rate"

	"github.com/kvpilot/kvpilot/server/peers/refusals"
)

// logWriter takes memberlist's log lines: at debug and warn, a few per second, and lines about another key as refusals.
type logWriter struct {
	log     *slog.Logger
	refused *refusals.Log
	pace    *rate.Limiter
	dropped atomic.Int64
}

// linesPerSecond and lineBurst bound memberlist's lines in the log.
const (
	linesPerSecond = 1
	lineBurst      = 10
)

func newLogWriter(log *slog.Logger, refused *refusals.Log) *logWriter {
	return &logWriter{log: log, refused: refused, pace: rate.NewLimiter(linesPerSecond, lineBurst)}
}

// Write implements io.Writer for one line.
func (w *logWriter) Write(line []byte) (int, error) {
	level, text := levelOf(strings.TrimSpace(string(line)))
	if isKeyError(text) {
		w.refused.Refuse(refusals.Key, sourceOf(text), "gossip with another key or none was received: fleet.key must be the same on all", "detail", text)
		return len(line), nil
	}
	if strings.Contains(text, "ignoring alive message") || strings.Contains(text, "Conflicting address") {
		level = slog.LevelDebug // the delegate has said it
	}
	if !w.log.Enabled(context.Background(), level) {
		return len(line), nil
	}
	if !w.pace.Allow() {
		w.dropped.Add(1)
		return len(line), nil
	}
	attrs := []any{"text", text}
	if n := w.dropped.Swap(0); n > 0 {
		attrs = append(attrs, "lines_dropped", n)
	}
	w.log.Log(context.Background(), level, "memberlist", attrs...)
	return len(line), nil
}

// levelOf takes the level off a line. An error of memberlist is one packet's or connection's.
func levelOf(line string) (slog.Level, string) {
	level, text := slog.LevelWarn, line
	if head, rest, found := strings.Cut(line, "] "); found && strings.HasPrefix(head, "[") {
		text = strings.TrimPrefix(rest, "memberlist: ")
		if head == "[DEBUG" || head == "[INFO" {
			level = slog.LevelDebug
		}
	}
	return level, text
}

// isKeyError reports whether a line says that a message could not be decrypted.
func isKeyError(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, "decrypt") || strings.Contains(text, "remote state is not encrypted") || strings.Contains(text, "remote state is encrypted")
}

// sourceOf is the host that a line ends with, as "from=host:port".
func sourceOf(text string) string {
	_, from, found := strings.Cut(text, "from=")
	if !found {
		return "unknown"
	}
	from, _, _ = strings.Cut(from, " ")
	if host, _, err := net.SplitHostPort(from); err == nil {
		return host
	}
	return from
}
