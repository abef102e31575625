package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// The fake tokenizer's speed: the times of a real one on one core.
const (
	fakeBase     = 2 * time.Millisecond
	fakePerToken = 2 * time.Microsecond
	// fakeToken is the bytes of text per token.
	fakeToken = 4
)

// fakeIDs renders messages as a chat template would, each in a frame, and gives one id for each
// four bytes of text.
func fakeIDs(messages [][]byte, generate bool) []uint32 {
	var ids []uint32
	for _, m := range messages {
		role, content := rawjson.Member(m, "role"), rawjson.Member(m, "content")
		ids = append(ids, 1, uint32(10+len(role)), 3)
		text := bytes.Trim(content, `"`)
		for len(text) > 0 {
			n := min(fakeToken, len(text))
			ids = append(ids, 1000+uint32(xxh3.Hash(text[:n])%100_000))
			text = text[n:]
		}
		ids = append(ids, 2, 3)
	}
	if generate {
		ids = append(ids, 1, uint32(10+len(`"assistant"`)), 3)
	}
	return ids
}

// fakeTokenize answers /tokenize; scale stretches its time, zero answers at once.
func fakeTokenize(body []byte, scale float64) []byte {
	var messages [][]byte
	_ = rawjson.Elements(rawjson.Member(body, "messages"), func(m []byte) bool { // our own bodies are well-formed
		messages = append(messages, m)
		return true
	})
	ids := fakeIDs(messages, true)
	if prompt := rawjson.Member(body, "prompt"); prompt != nil {
		ids = fakeIDs([][]byte{append(append([]byte(`{"role":"text","content":`), prompt...), '}')}, false)
	}
	time.Sleep(time.Duration(scale * float64(fakeBase+time.Duration(len(ids))*fakePerToken)))
	out := fmt.Appendf(make([]byte, 0, 7*len(ids)+64), `{"count":%d,"max_model_len":131072,"tokens":`, len(ids))
	return append(rawjson.AppendUint32s(out, ids), '}')
}

// serveFakeTokenizer serves until in ends, in a process of its own so that its time is not counted as
// the router's. It writes its address first. It is no simulated replica (package enginesim): it must take no more
// than the modelled time, and its processes share two cores with the router that is measured.
func serveFakeTokenizer(ctx context.Context, in io.Reader, out io.Writer) error {
	listen := net.ListenConfig{}
	l, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{ReadHeaderTimeout: time.Second, IdleTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/tokenize" {
			http.NotFound(w, r)
			return
		}
		answer := fakeTokenize(body, 1)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", fmt.Sprint(len(answer)))
		_, _ = w.Write(answer) // the caller may have left
	})}
	go func() {
		_, _ = io.Copy(io.Discard, in) // ends when the parent goes away
		_ = srv.Close()
	}()
	_, _ = fmt.Fprintln(out, l.Addr())
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// fakeFleet is a set of fake replicas in processes of their own.
type fakeFleet struct {
	replicas []*replica.Replica
	stop     []func()
}

func startFakeFleet(ctx context.Context, n int) (*fakeFleet, error) {
	f := &fakeFleet{}
	for i := range n {
		child, err := measure.StartSelf(ctx, "tokenize", "replica")
		if err != nil {
			return f, err
		}
		f.stop = append(f.stop, func() {
			_ = child.In.Close() // its end is the signal to stop
			_ = child.Wait()     // the exit status says nothing here
		})
		line, err := child.Out.ReadString('\n')
		if err != nil {
			return f, fmt.Errorf("start a fake replica: %w", err)
		}
		f.replicas = append(f.replicas, &replica.Replica{
			ID: replica.ID(fmt.Sprintf("fake-%d", i)), URL: "http://" + strings.TrimSpace(line), State: replica.StateReady,
			Version: "0.17.0", Models: []replica.Model{{ID: benchModel, MaxLen: 131072}},
		})
	}
	return f, nil
}

// kill ends all replicas at once.
func (f *fakeFleet) kill() {
	for _, stop := range f.stop {
		stop()
	}
	f.stop = nil
}
