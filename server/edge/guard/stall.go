package guard

import (
	"net/http"
	"time"
)

// StallTimeout ends responses that the client does not read for as long as limit returns when they begin. Zero: never.
func StallTimeout(most func() time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit := most()
		if limit <= 0 {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(&stallWriter{ResponseWriter: w, control: http.NewResponseController(w), limit: limit, multiplexed: r.ProtoMajor > 1}, r)
	})
}

// stallWriter sets a deadline for each piece of an answer.
type stallWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration
	// multiplexed: HTTP/2 ends a stream at its deadline even when nothing is being written.
	multiplexed bool
}

// Unwrap is for http.ResponseController.
func (w *stallWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *stallWriter) Write(p []byte) (int, error) {
	w.extend()
	return w.ResponseWriter.Write(p)
}

// WriteHeader implements http.ResponseWriter.
func (w *stallWriter) WriteHeader(status int) {
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

// FlushError is for http.ResponseController.
func (w *stallWriter) FlushError() error {
	w.extend()
	err := w.control.Flush()
	if w.multiplexed {
		_ = w.control.SetWriteDeadline(time.Time{}) // as below
	}
	return err
}

// Flush implements http.Flusher.
func (w *stallWriter) Flush() { _ = w.FlushError() } // the next write returns the error again

func (w *stallWriter) extend() {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.limit)) // test writers have no deadlines
}
