package decisionlog

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"
)

const (
	// fileQueue bounds the entries that wait for the disk.
	fileQueue = 4096
	// flushEvery is how long a line may stay in memory.
	flushEvery = time.Second
)

// fileWriter appends entries to a file from one goroutine.
type fileWriter struct {
	path    string
	most    int64 // bytes; zero for no bound
	log     *slog.Logger
	metrics *metrics
	queue   chan Entry
}

func newFileWriter(c Config, log *slog.Logger, m *metrics) *fileWriter {
	return &fileWriter{path: c.File, most: c.FileMaxBytes, log: log, metrics: m, queue: make(chan Entry, fileQueue)}
}

// offer hands an entry over without waiting.
func (w *fileWriter) offer(e Entry) {
	select {
	case w.queue <- e:
	default:
		w.metrics.dropped("file")
	}
}

// Run writes the file until ctx ends, and what is queued then. A Log without a file needs no Run,
// and Run returns when ctx ends.
func (l *Log) Run(ctx context.Context) error {
	if l.file == nil {
		<-ctx.Done()
		return nil
	}
	return l.file.run(ctx)
}

func (w *fileWriter) run(ctx context.Context) error {
	file, out, err := w.open()
	if err != nil {
		return err
	}
	ticker := time.NewTicker(flushEvery)
	defer ticker.Stop()
	failing := false
	note := func(err error) {
		if err != nil && !failing {
			w.log.Error("decision log cannot be written", "file", w.path, "error", err)
		}
		failing = err != nil
	}
	for {
		select {
		case e := <-w.queue:
			note(json.NewEncoder(out).Encode(e))
		case <-ticker.C:
			note(out.Flush())
			w.rotate(file)
			if w.moved(file) || failing {
				if f, o, err := w.open(); err == nil {
					_ = file.Close() // it was flushed; the new file is what counts
					file, out = f, o
				}
			}
		case <-ctx.Done():
			for {
				select {
				case e := <-w.queue:
					note(json.NewEncoder(out).Encode(e))
					continue
				default:
				}
				note(out.Flush())
				return file.Close()
			}
		}
	}
}

func (w *fileWriter) open() (*os.File, *bufio.Writer, error) {
	file, err := os.OpenFile(w.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, nil, fmt.Errorf("open decision log: %w", err)
	}
	return file, bufio.NewWriterSize(file, 64<<10), nil
}

// rotate moves a file away that has become too large.
func (w *fileWriter) rotate(open *os.File) {
	now, err := open.Stat()
	if w.most == 0 || err != nil || now.Size() < w.most || w.moved(open) {
		return
	}
	if err := os.Rename(w.path, w.path+".1"); err != nil {
		w.log.Error("decision log cannot be moved away", "file", w.path, "error", err)
	}
}

// moved reports whether the path no longer names the open file.
func (w *fileWriter) moved(open *os.File) bool {
	now, err := os.Stat(w.path)
	if err != nil {
		return true
	}
	was, err := open.Stat()
	return err != nil || !os.SameFile(now, was)
}
