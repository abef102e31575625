package upstream

import (
	"bufio"
	"bytes"
	"fmt"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
)

// kept is a streamed body of which all is kept, up to limit.
type kept struct {
	request *Request
	rest    io.Reader
	head    []byte
	limit   int
	spent   bool
}

// streamed is a request whose body comes from a reader.
func streamed(body []byte, limit int) *Request {
	k := &kept{rest: bytes.NewReader(body), limit: limit}
	k.request = &Request{Method: "POST", Path: "/", Stream: k, StreamSize: int64(len(body))}
	k.request.Again = func() bool {
		k.request.Body, k.request.StreamSize = k.head, int64(len(body)-len(k.head))
		return !k.spent
	}
	return k.request
}

func (k *kept) Read(p []byte) (int, error) {
	n, err := k.rest.Read(p)
	if k.spent = k.spent || len(k.head)+n > k.limit; !k.spent {
		k.head = append(k.head, p[:n]...)
	}
	return n, err
}

// answerOf sends the request and reads the answer.
func answerOf(t *testing.T, c *Client, target Target, r *Request) (string, error) {
	t.Helper()
	resp, err := c.Do(ctxFor(t), target, r)
	if err != nil {
		return "", err
	}
	defer resp.Close()
	b, err := resp.ReadAll(1 << 20)
	return string(b), err
}

func TestOnlyABodyThatCanBeSentAgainUsesAKeptConnection(t *testing.T) {
	eachRead(t, nil, func(t *testing.T, c *Client) {
		var mu sync.Mutex
		ports := map[string]bool{}
		target := serve(t, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			ports[r.RemoteAddr] = true
			mu.Unlock()
			n, _ := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n)
		})
		body := bytes.Repeat([]byte("sound"), 100_000)
		send := func(r *Request, want int) {
			t.Helper()
			if got, err := answerOf(t, c, target, r); err != nil || got != fmt.Sprint(len(body)) {
				t.Fatalf("got %q, %v", got, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(ports) != want {
				t.Errorf("%d connections so far, want %d", len(ports), want)
			}
		}
		send(post(string(body)), 1)
		send(streamed(body, len(body)), 1)
		send(streamed(body, len(body)), 1)
		for n, size := range []int64{int64(len(body)), -1} {
			send(&Request{Method: "POST", Path: "/", Stream: bytes.NewReader(body), StreamSize: size, Once: true}, 2+n)
		}
	})
}

// The replica closes a kept connection when the next request has begun to come: what is at hand is sent again, and what
// can be sent once was not sent there.
func TestALargeBodyMeetsAConnectionThatCloses(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789"), 1<<20)
	for name, request := range map[string]func() *Request{
		"at hand": func() *Request { return post(string(body)) },
		"streamed": func() *Request {
			return &Request{Method: "POST", Path: "/", Stream: bytes.NewReader(body), StreamSize: int64(len(body)), Once: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := New(DefaultConfig(), Params{})
			t.Cleanup(func() { c.transport.shut() })
			target := serveConn(t, func(conn net.Conn) {
				in := bufio.NewReader(conn)
				req, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				n, _ := io.Copy(io.Discard, req.Body)
				fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n%08d", n)
				in.ReadByte() // the connection is closed, with what else has come unread
			})
			for i := range 10 {
				if got, err := answerOf(t, c, target, post("{}")); err != nil || got != "00000002" {
					t.Fatalf("round %d: %q, %v", i, got, err)
				}
				if got, err := answerOf(t, c, target, request()); err != nil || got != fmt.Sprintf("%08d", len(body)) {
					t.Fatalf("round %d: %q, %v", i, got, err)
				}
			}
		})
	}
}

// The replica keeps a connection and closes it when the next request is there.
func TestAStreamedBodyIsSentAgainAsAWholeOrNotAtAll(t *testing.T) {
	for _, tc := range []struct {
		name  string
		limit int
		again bool
	}{{"all kept", 1 << 20, true}, {"part gone", 1000, false}} {
		t.Run(tc.name, func(t *testing.T) {
			c := New(DefaultConfig(), Params{})
			t.Cleanup(func() { c.transport.shut() })
			var sums sync.Map
			target := serveConn(t, func(conn net.Conn) {
				in := bufio.NewReader(conn)
				for range 2 {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					sum := crc32.NewIEEE()
					if n, err := io.Copy(sum, req.Body); err != nil || n != req.ContentLength {
						return
					}
					if _, again := sums.LoadOrStore(conn.RemoteAddr().String(), sum.Sum32()); again {
						return // without a word
					}
					fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n%08x", sum.Sum32())
				}
			})
			body := bytes.Repeat([]byte("0123456789"), 10_000)
			want := fmt.Sprintf("%08x", crc32.ChecksumIEEE(body))
			if got, err := answerOf(t, c, target, streamed(body, tc.limit)); err != nil || got != want {
				t.Fatalf("a fresh connection: %q, %v", got, err)
			}
			got, err := answerOf(t, c, target, streamed(body, tc.limit))
			if tc.again && (err != nil || got != want) {
				t.Errorf("got %q, %v; want the answer to the whole body", got, err)
			}
			if !tc.again && (err == nil || Classify(nil, err) != retry.Reset) {
				t.Errorf("got %q, %v; want an error, for the body's beginning is gone", got, err)
			}
		})
	}
}

// Many send streamed bodies at once to a replica that now and then closes a connection instead of
// answering. Whoever tries again as the router does gets the answer to the whole body.
func TestStreamedBodiesWhileConnectionsClose(t *testing.T) {
	eachRead(t, nil, func(t *testing.T, c *Client) {
		var requests atomic.Int64
		target := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if requests.Add(1)%5 == 0 {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				conn.Close()
				return
			}
			sum := crc32.NewIEEE()
			if _, err := io.Copy(sum, r.Body); err != nil {
				return // the client sends it anew
			}
			fmt.Fprintf(w, "%08x", sum.Sum32())
		})
		var group sync.WaitGroup
		for worker := range 8 {
			group.Go(func() {
				dice := rand.New(rand.NewPCG(uint64(worker), 1))
				for range 25 {
					body := make([]byte, 1+dice.IntN(150_000))
					for i := range body {
						body[i] = byte(dice.Uint32())
					}
					r := streamed(body, len(body))
					got, err := answerOf(t, c, target, r)
					for tries := 0; err != nil && tries < 50 && r.Again(); tries++ {
						got, err = answerOf(t, c, target, r)
					}
					if want := fmt.Sprintf("%08x", crc32.ChecksumIEEE(body)); err != nil || got != want {
						t.Errorf("worker %d: got %q, %v, want %s", worker, got, err, want)
						return
					}
				}
			})
		}
		group.Wait()
	})
}
