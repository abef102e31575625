package decisionlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
	// flushAt is how many bytes are collected before they are written sooner.
	flushAt = 64 << 10
	// unwritten bounds what is kept for a disk that takes nothing: it is full, or gone.
	unwritten = 1 << 20
)

// fileWriter appends entries to a file from one goroutine. What the disk does not take is kept for
// a while and tried again every second; a line is never left half written.
type fileWriter struct {
	path    string
	most    int64 // bytes; zero for no bound
	log     *slog.Logger
	metrics *metrics
	queue   chan Entry

	// The rest belongs to run's goroutine.
	file    *os.File
	buffer  bytes.Buffer
	lines   int  // in the buffer
	lost    int  // since the disk failed
	failing bool // it was said that the disk fails
}

func newFileWriter(c Config, log *slog.Logger, m *metrics) *fileWriter {
	return &fileWriter{path: c.File, most: c.FileMaxBytes, log: log, metrics: m, queue: make(chan Entry, fileQueue)}
}

// offer hands an entry over without waiting.
func (w *fileWriter) offer(e Entry) {
	select {
	case w.queue <- e:
	default:
		w.metrics.dropped("file", 1)
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
	if err := w.open(); err != nil {
		return err // at start somebody is there to put it right
	}
	ticker := time.NewTicker(flushEvery)
	defer ticker.Stop()
	for {
		select {
		case e := <-w.queue:
			w.add(e)
		case <-ticker.C:
			w.note(w.tend())
		case <-ctx.Done():
			for {
				select {
				case e := <-w.queue:
					w.add(e)
					continue
				default:
				}
				w.note(w.flush())
				w.drop()
				return w.file.Close()
			}
		}
	}
}

func (w *fileWriter) open() error {
	file, err := os.OpenFile(w.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("open decision log: %w", err)
	}
	if w.file != nil {
		_ = w.file.Close() // all of it was written; the new file is what counts
	}
	w.file = file
	return nil
}

// add puts a line into the buffer.
func (w *fileWriter) add(e Entry) {
	if w.buffer.Len() > unwritten {
		w.lost++
		w.metrics.dropped("file", 1)
		return
	}
	if err := json.NewEncoder(&w.buffer).Encode(e); err != nil {
		w.metrics.dropped("file", 1)
		return
	}
	w.lines++
	if w.buffer.Len() > flushAt && !w.failing {
		w.note(w.flush())
	}
}

// tend writes what waits, moves a file away that is too large and follows one that was moved.
func (w *fileWriter) tend() error {
	err := w.flush()
	if err == nil {
		err = w.rotate()
	}
	if w.moved() {
		err = errors.Join(err, w.open())
	}
	return err
}

// flush writes the buffer. Of a write that the disk took only in part nothing stays: half a line
// would spoil the next one.
func (w *fileWriter) flush() error {
	if w.buffer.Len() == 0 {
		return nil
	}
	n, err := w.file.Write(w.buffer.Bytes())
	if err != nil {
		if about, statErr := w.file.Stat(); n > 0 && statErr == nil {
			err = errors.Join(err, w.file.Truncate(about.Size()-int64(n)))
		}
		return err
	}
	w.buffer.Reset()
	w.lines = 0
	return nil
}

// drop gives up what could not be written.
func (w *fileWriter) drop() {
	if w.lines > 0 {
		w.metrics.dropped("file", int64(w.lines))
	}
	w.buffer.Reset()
	w.lines = 0
}

// note says once that the file cannot be written, and once that it can be again.
func (w *fileWriter) note(err error) {
	switch {
	case err != nil && !w.failing:
		w.failing = true
		w.log.Error("decision log cannot be written; it is tried again every second", "file", w.path, "error", err)
	case err == nil && w.failing:
		w.failing = false
		w.log.Info("decision log is written again", "file", w.path, "lost", w.lost)
		w.lost = 0
	}
}

// rotate moves a file away that has become too large.
func (w *fileWriter) rotate() error {
	now, err := w.file.Stat()
	if w.most == 0 || err != nil || now.Size() < w.most || w.moved() {
		return err
	}
	return os.Rename(w.path, w.path+".1")
}

// moved reports whether the path no longer names the open file.
func (w *fileWriter) moved() bool {
	now, err := os.Stat(w.path)
	if err != nil {
		return true
	}
	was, err := w.file.Stat()
	return err != nil || !os.SameFile(now, was)
}
