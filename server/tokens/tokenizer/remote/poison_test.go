package remote

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// poisoned answers 500 to each question with the word poison.
func poisoned(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	if bytes.Contains(body, []byte("poison")) {
		return answer(500, `{"error":"assertion failed"}`)(req)
	}
	return okay(req)
}

// A question that tokenizers fail takes no token ids from others.
func TestAPoisonedQuestionIsItsOwnFault(t *testing.T) {
	for name, c := range map[string]struct {
		text    string
		tenant  string
		names   []string
		honesty time.Duration // between two honest questions
	}{
		"the same":                   {"poison", "mallory", []string{"a", "b", "c"}, 300 * time.Millisecond},
		"varied":                     {"poison %d", "mallory", []string{"a", "b", "c"}, 300 * time.Millisecond},
		"varied, without tenants":    {"poison %d", "", []string{"a", "b", "c"}, 300 * time.Millisecond},
		"varied, of many tenants":    {"poison %d", "mallory %d", []string{"a", "b", "c"}, 300 * time.Millisecond},
		"varied, at one replica":     {"poison %d", "mallory", []string{"a"}, 300 * time.Millisecond},
		"the same, at one replica":   {"poison", "", []string{"a"}, 300 * time.Millisecond},
		"varied, and few are honest": {"poison %d", "mallory", []string{"a", "b", "c"}, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet()
				p := New(DefaultConfig(), Params{Sender: f})
				for _, n := range c.names {
					f.set(n, poisoned)
				}
				rs := replicas(c.names...)
				total := func() (n int) {
					for _, name := range c.names {
						n += f.count(name)
					}
					return n
				}
				with := func(text string, i int) string {
					if bytes.Contains([]byte(text), []byte("%d")) {
						return fmt.Sprintf(text, i)
					}
					return text
				}
				if _, err := askNew(t, p, rs); err != nil {
					t.Fatal(err)
				}
				next := time.Now()
				for i := range 300 { // a minute of 5 a second
					before := total()
					_, err := p.Do(t.Context(), rs, &Job{Op: OpText, Model: "m", Tenant: with(c.tenant, i), Text: with(c.text, i)})
					if kind(err) != "status" {
						t.Fatalf("poison %d: %v", i, err)
					}
					if n := total() - before; i >= 10 && n > 2 && len(c.names) > 1 {
						t.Fatalf("poison %d was asked %d times", i, n)
					}
					if !time.Now().Before(next) {
						next = time.Now().Add(c.honesty)
						if _, err := p.Do(t.Context(), rs, &Job{Op: OpText, Model: "m", Tenant: "ann", Text: fmt.Sprint("hello ", i)}); err != nil {
							t.Fatalf("after %d poisons an honest question: %v", i+1, err)
						}
					}
					time.Sleep(200 * time.Millisecond)
				}
				p.wg.Wait()
			})
		})
	}
}

// A tokenizer that fails every question is left, while others answer.
func TestABrokenTokenizerIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := New(DefaultConfig(), Params{Sender: f})
		f.set("a", answer(500, `{}`))
		rs := replicas("a", "b", "c")
		for range 60 {
			if _, err := askNew(t, p, rs); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		if n := f.count("a"); n != breakerThreshold || !(*p.table.live.Load())["a"].isOpen() {
			t.Errorf("it was asked %d times, open %v", n, (*p.table.live.Load())["a"].isOpen())
		}
		p.wg.Wait()
	})
}

// A shortage of this machine suspends no tokenizer, nor does a caller without time.
func TestTheRoutersShortageIsNoTokenizersFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := New(DefaultConfig(), Params{Sender: f})
		rs := replicas("a", "b")
		for _, n := range []string{"a", "b"} {
			f.set(n, func(*http.Request) (*http.Response, error) {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
			})
		}
		for range 50 {
			if _, err := askNew(t, p, rs); kind(err) != "own_fault" {
				t.Fatalf("%v, want own_fault", err)
			}
		}
		for _, n := range []string{"a", "b"} {
			f.set(n, after(time.Hour, okay))
		}
		for i := range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			_, err := p.Do(ctx, rs, &Job{Op: OpText, Text: fmt.Sprint(i)})
			cancel()
			if kind(err) != "timeout" {
				t.Fatalf("%v, want timeout", err)
			}
		}
		p.wg.Wait()
		for _, id := range []replica.ID{"a", "b"} {
			if (*p.table.live.Load())[id].isOpen() {
				t.Errorf("%s is suspended", id)
			}
		}
	})
}
