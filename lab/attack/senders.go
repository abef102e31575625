package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// attackerAddress is the host of all attackers.
const attackerAddress = "127.0.0.66"

// dialer connects from the attackers' address.
func dialer() *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(attackerAddress)}, Timeout: 5 * time.Second}
}

// findings are counts and texts that an attack collects for its check.
type findings struct {
	mu     sync.Mutex
	counts map[string]int // guarded by mu
}

func (f *findings) add(what string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.counts == nil {
		f.counts = map[string]int{}
	}
	f.counts[what] += n
}

func (f *findings) get(what string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[what]
}

func (f *findings) all() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.counts)
}

func (f *findings) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(f.counts)) {
		parts = append(parts, fmt.Sprintf("%s: %d", what, f.counts[what]))
	}
	return strings.Join(parts, ", ")
}

// every calls do at a rate, at once if the last call still runs, until ctx ends; it waits for all calls.
func every(ctx context.Context, perSecond int, do func(n int)) {
	var wait sync.WaitGroup
	defer wait.Wait()
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for n := 0; ; n++ {
		wait.Go(func() { do(n) })
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// hostile is an HTTP client at the attackers' address; http2 without TLS where asked.
func hostile(http2 bool) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(!http2)
	p.SetUnencryptedHTTP2(http2)
	return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DialContext: dialer().DialContext, Protocols: p, MaxIdleConnsPerHost: 64}}
}

// send makes a request of the attacker and counts its status, or that it had no answer.
func (w *world) send(ctx context.Context, client *http.Client, method, url, body string, header ...string) string {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		w.found.add("not sent", 1)
		return ""
	}
	req.Header.Set("Authorization", "Bearer "+attackerKey)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		if ctx.Err() == nil {
			w.found.add("without an answer", 1)
		}
		return ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // the status is counted
	w.found.add(fmt.Sprint(resp.StatusCode), 1)
	return string(text)
}

// raw sends a body with a query that the client does not escape.
func (w *world) raw(ctx context.Context, client *http.Client, path, query, body string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+w.router().http+path, strings.NewReader(body))
	if err != nil {
		w.found.add("not sent", 1)
		return
	}
	req.URL.RawQuery = query
	req.Header.Set("Authorization", "Bearer "+attackerKey)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		w.found.add("without an answer", 1)
		return
	}
	resp.Body.Close()
	w.found.add(fmt.Sprint(resp.StatusCode), 1)
}

// connect makes a gRPC connection of the attacker. Dialed connections go through wrap, when it is set.
func connect(address string, wrap func(net.Conn) net.Conn) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			c, err := dialer().DialContext(ctx, "tcp", address)
			if err == nil && wrap != nil {
				c = wrap(c)
			}
			return c, err
		}))
}

func as(ctx context.Context, key string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
}

// deaf is a connection that reads nothing once it is stopped.
type deaf struct {
	net.Conn
	stopped <-chan struct{}
	closed  chan struct{}
	once    sync.Once
}

func (d *deaf) Read(p []byte) (int, error) {
	select {
	case <-d.stopped:
		<-d.closed
		return 0, io.EOF
	default:
	}
	_ = d.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) // so that it notices when it is stopped
	n, err := d.Conn.Read(p)
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return d.Read(p)
	}
	return n, err
}

func (d *deaf) Close() error {
	d.once.Do(func() { close(d.closed) })
	return d.Conn.Close()
}

// reconnect is the pause before a socket that the router has closed is opened again: an attacker of memory, not of processor time.
const reconnect = time.Second

// sockets opens connections to an address, writes text to each and reads nothing, until ctx ends. A connection that the router
// closes is opened again when again is set.
func (w *world) sockets(ctx context.Context, address, text string, n int, again bool) {
	var wait sync.WaitGroup
	defer wait.Wait()
	for range n {
		wait.Go(func() {
			for ctx.Err() == nil {
				w.socket(ctx, address, text)
				if !again {
					<-ctx.Done()
				}
				select {
				case <-time.After(reconnect):
				case <-ctx.Done():
				}
			}
		})
	}
}

func (w *world) socket(ctx context.Context, address, text string) {
	c, err := dialer().DialContext(ctx, "tcp", address)
	if err != nil {
		w.found.add("not connected", 1)
		return
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	w.found.add("connected", 1)
	if _, err := io.WriteString(c, text); err != nil {
		w.found.add("cut", 1)
		return
	}
	one := make([]byte, 512)
	if n, _ := c.Read(one); n > 12 && strings.HasPrefix(string(one), "HTTP/") { // a refusal, or its end
		w.found.add("answered "+string(one[9:12]), 1)
	}
}
