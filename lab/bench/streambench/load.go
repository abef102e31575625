package streambench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// request is the bytes of one chat request, with more headers.
func request(address string, stream bool, size int, headers ...string) []byte {
	text := bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog "), size/44+1)[:size]
	seed := "" // a stream with a seed cannot be resumed, and would not be followed
	if !stream {
		seed = fmt.Sprintf(`,"seed":%d`, firstSeed)
	}
	body := fmt.Sprintf(`{"model":%q,"stream":%v,"messages":[{"role":"system","content":"be kind"},{"role":"user","content":"%s"}],"max_tokens":200,"temperature":0.7%s}`, Model, stream, text, seed)
	more := strings.Join(append(headers, ""), "\r\n")
	return fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s", address, len(body), more, body)
}

// firstSeed has as many digits as all the seeds that follow it.
const firstSeed = 10_000_000

// renewed gives the request another seed, so that no two bodies are equal and each must be read.
func renewed(payload []byte, seed int) {
	const name = `"seed":`
	at := bytes.LastIndex(payload, []byte(name)) + len(name)
	strconv.AppendInt(payload[at:at:len(payload)], int64(firstSeed+seed), 10)
}

// streams opens n streams at once, spread over the interval of their chunks, reads each to its end,
// and returns the latencies of all chunks but each stream's first, which waits for a connection. The
// same seed gives the same phases, in which streams open and their chunks come.
func streams(ctx context.Context, address string, n int, every time.Duration, seed uint64) ([]time.Duration, error) {
	phases := rand.New(rand.NewPCG(seed, 64))
	var mu sync.Mutex
	var all []time.Duration
	var errs []error
	var group sync.WaitGroup
	for range n {
		phase := time.Duration(phases.Int64N(int64(every) + 1))
		payload := request(address, true, 200, fmt.Sprintf("%s: %d", phaseHeader, phase))
		group.Go(func() {
			time.Sleep(phase)
			latencies, err := readStream(ctx, address, payload)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, latencies...)
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	group.Wait()
	if len(errs) > 0 {
		return nil, fmt.Errorf("%d of %d streams failed, the first: %w", len(errs), n, errs[0])
	}
	slices.Sort(all)
	return all, nil
}

// readStream reads one stream to its end.
func readStream(ctx context.Context, address string, payload []byte) ([]time.Duration, error) {
	c, err := open(ctx, address, payload)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var latencies []time.Duration
	buf := make([]byte, 4096)
	var last []byte
	done := false
	for first := true; ; {
		n, err := c.Read(buf)
		now := time.Now().UnixNano()
		for rest := buf[:n]; ; {
			at := bytes.Index(rest, []byte(stamp))
			if at < 0 || len(rest) < at+len(stamp)+19 {
				break
			}
			rest = rest[at+len(stamp):]
			sent, bad := strconv.ParseInt(string(rest[:19]), 10, 64)
			if bad != nil {
				return nil, bad
			}
			if !first {
				latencies = append(latencies, time.Duration(now-sent))
			}
			first = false
		}
		// Leaving before the last chunk of the transfer would be an abort for the proxy.
		done = done || bytes.Contains(buf[:n], []byte("[DONE]"))
		if done && bytes.HasSuffix(buf[:n], []byte("0\r\n\r\n")) {
			return latencies, nil
		}
		if err != nil {
			return nil, fmt.Errorf("after %d chunks, last %q: %w", len(latencies), last, err)
		}
		last = append(last[:0], buf[:min(n, 300)]...)
	}
}

// open sends the request and leaves the answer unread.
func open(ctx context.Context, address string, payload []byte) (net.Conn, error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline) // a fresh connection takes it
	}
	if _, err := c.Write(payload); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// openHeld opens a stream and reads until its first chunk is there.
func openHeld(ctx context.Context, address string, payload []byte) (net.Conn, error) {
	c, err := open(ctx, address, payload)
	if err != nil {
		return nil, err
	}
	var seen []byte
	buf := make([]byte, 1024)
	for !bytes.Contains(seen, []byte(stamp)) {
		n, err := c.Read(buf)
		seen = append(seen, buf[:n]...)
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("wait for a chunk after %q: %w", seen, err)
		}
	}
	return c, nil
}

// unary sends total requests over workers connections, and returns their latencies, sorted.
func unary(ctx context.Context, address string, workers, total, size int) ([]time.Duration, error) {
	payload := request(address, false, size)
	results := make([][]time.Duration, workers)
	errs := make([]error, workers)
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() { results[w], errs[w] = unaryWorker(ctx, address, bytes.Clone(payload), total/workers, w*total) })
	}
	group.Wait()
	all := slices.Concat(results...)
	slices.Sort(all)
	return all, errors.Join(errs...)
}

func unaryWorker(ctx context.Context, address string, payload []byte, total, seed int) ([]time.Duration, error) {
	w := worker{address: address, payload: payload}
	defer w.close()
	var latencies []time.Duration
	for i := range total {
		renewed(payload, seed+i)
		began := time.Now()
		if err := w.send(ctx); err != nil {
			return nil, err
		}
		latencies = append(latencies, time.Since(began))
	}
	return latencies, nil
}

// worker sends the same request again and again on one connection.
type worker struct {
	address string
	payload []byte
	conn    net.Conn
	in      *bufio.Reader
}

// send sends the request and reads its answer.
func (w *worker) send(ctx context.Context) error {
	if w.conn == nil {
		c, err := open(ctx, w.address, w.payload)
		if err != nil {
			return err
		}
		w.conn, w.in = c, bufio.NewReader(c)
	} else if _, err := w.conn.Write(w.payload); err != nil {
		return err
	}
	return readAnswer(w.in)
}

func (w *worker) close() {
	if w.conn != nil {
		w.conn.Close()
	}
}

// readAnswer reads one answer that has a Content-Length, or comes in chunks.
func readAnswer(in *bufio.Reader) error {
	length, chunked := -1, false
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
			rest, _ := in.Peek(min(in.Buffered(), 600))
			return fmt.Errorf("answer %q %q", line, rest)
		}
		if len(line) <= 2 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(name, []byte("content-length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
		chunked = chunked || bytes.EqualFold(name, []byte("transfer-encoding"))
	}
	switch {
	case chunked:
		return readChunks(in)
	case length < 0:
		return errors.New("an answer without Content-Length")
	}
	_, err := io.CopyN(io.Discard, in, int64(length))
	return err
}

// readChunks reads a body in chunks, without trailers.
func readChunks(in *bufio.Reader) error {
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, in, n+2); err != nil || n == 0 {
			return err
		}
	}
}
