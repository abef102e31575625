package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/scope"
)

const (
	// queueLength bounds the entries that wait for the disk.
	queueLength = 4096
	// flushEvery is how long a line may stay in memory.
	flushEvery = time.Second
	// flushAt is how many bytes are collected before they are written sooner.
	flushAt = 64 << 10
	// unwritten bounds the bytes kept for a disk that takes nothing: it is full, or gone.
	unwritten = 1 << 20
)

// Params say where a Writer writes.
type Params struct {
	// Name is the file's name in the log ("decision log").
	Name string
	// Path is the file. It is opened for append by Run, and again when it was moved away.
	Path string
	// MaxBytes bounds the file: when it is larger it becomes Path.1, in place of the one before. Zero: no bound.
	MaxBytes int64
	// To receives the lines in place of a file, when it is set.
	To io.Writer
	// Losses counts lost lines; nil: nothing does.
	Losses Losses
	Scope  scope.Scope
}

// Losses counts lost lines.
type Losses interface {
	Lost(n int64)
}

// Writer appends values as JSON lines, from the goroutine of Run. Lines that the disk does not take are kept for a while and written
// again every second; a line is never left half written. Make one with New.
type Writer struct {
	Params
	queue chan any

	// The rest belongs to run's goroutine.
	file    *os.File
	buffer  bytes.Buffer
	lines   int  // in the buffer
	lost    int  // since the disk failed
	failing bool // it was said that the disk fails
}

// New makes a Writer. It opens nothing.
func New(p Params) *Writer {
	return &Writer{Params: p, queue: make(chan any, queueLength)}
}

func (w *Writer) count(lost int) {
	if w.Losses != nil {
		w.Losses.Lost(int64(lost))
	}
}

// Offer hands a value over without waiting. The value must not change any more.
func (w *Writer) Offer(v any) {
	select {
	case w.queue <- v:
	default:
		w.count(1)
	}
}

// Run writes offered values until ctx ends, and the values queued then. It returns an error when the file cannot be opened at
// its start.
func (w *Writer) Run(ctx context.Context) error {
	if err := w.open(); err != nil {
		return err // at start the operator can correct it
	}
	ticker := time.NewTicker(flushEvery)
	defer ticker.Stop()
	for {
		select {
		case v := <-w.queue:
			w.add(v)
		case <-ticker.C:
			w.note(w.tend())
		case <-ctx.Done():
			for {
				select {
				case v := <-w.queue:
					w.add(v)
					continue
				default:
				}
				w.note(w.flush())
				w.drop()
				return w.close()
			}
		}
	}
}

func (w *Writer) open() error {
	if w.To != nil {
		return nil
	}
	file, err := os.OpenFile(w.Path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("open %s: %w", w.Name, err)
	}
	if w.file != nil {
		_ = w.file.Close() // all of it was written; only the new file counts
	}
	w.file = file
	return nil
}

func (w *Writer) close() error {
	if w.file == nil {
		return nil
	}
	return w.file.Close()
}

// add puts a line into the buffer.
func (w *Writer) add(v any) {
	if w.buffer.Len() > unwritten {
		w.lost++
		w.count(1)
		return
	}
	if err := json.NewEncoder(&w.buffer).Encode(v); err != nil {
		w.count(1)
		return
	}
	w.lines++
	if w.buffer.Len() > flushAt && !w.failing {
		w.note(w.flush())
	}
}

// tend writes the waiting lines, moves a file away that is too large and follows one that was moved.
func (w *Writer) tend() error {
	err := w.flush()
	if w.To != nil {
		return err
	}
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
func (w *Writer) flush() error {
	if w.buffer.Len() == 0 {
		return nil
	}
	if w.To != nil {
		_, err := w.To.Write(w.buffer.Bytes())
		w.buffer.Reset()
		w.lines = 0
		return err
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

// drop gives up lines that could not be written.
func (w *Writer) drop() {
	if w.lines > 0 {
		w.count(w.lines)
	}
	w.buffer.Reset()
	w.lines = 0
}

// note says once that the file cannot be written, and once that it can be again.
func (w *Writer) note(err error) {
	switch {
	case err != nil && !w.failing:
		w.failing = true
		w.Scope.Log().Error(w.Name+" cannot be written; retrying every second", "file", w.Path, "error", err)
	case err == nil && w.failing:
		w.failing = false
		w.Scope.Log().Info(w.Name+" can be written again", "file", w.Path, "lost", w.lost)
		w.lost = 0
	}
}

// rotate moves a file away that has become too large.
func (w *Writer) rotate() error {
	now, err := w.file.Stat()
	if w.MaxBytes == 0 || err != nil || now.Size() < w.MaxBytes || w.moved() {
		return err
	}
	return os.Rename(w.Path, w.Path+".1")
}

// moved reports whether the path no longer names the open file.
func (w *Writer) moved() bool {
	now, err := os.Stat(w.Path)
	if err != nil {
		return true
	}
	was, err := w.file.Stat()
	return err != nil || !os.SameFile(now, was)
}
