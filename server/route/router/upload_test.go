package router_test

import (
	"bytes"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// upload is a client's body that is still coming.
type upload struct {
	io.Reader
	passed bool
}

func (u *upload) Pass() { u.passed = true }

// audioForm is a form with a file of size bytes.
func audioForm(t *testing.T, model string, size int, fileFirst bool) (body []byte, contentType string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	parts := []func(){
		func() { must(t, w.WriteField("model", model)) },
		func() {
			part, err := w.CreateFormFile("file", "speech.wav")
			must(t, err)
			part.Write(bytes.Repeat([]byte("\x00\xff\r\n--"), size/6))
		},
	}
	if fileFirst {
		parts[0], parts[1] = parts[1], parts[0]
	}
	for _, p := range parts {
		p()
	}
	must(t, w.Close())
	return b.Bytes(), w.FormDataContentType()
}

func transcribe(contentType string, from io.Reader, size int64) (*intake.Call, *upload) {
	u := &upload{Reader: from}
	return &intake.Call{
		Route: openai.RouteTranscriptions, Method: http.MethodPost, Path: "/v1/audio/transcriptions", RequestID: "req-1",
		Header: http.Header{"Content-Type": {contentType}}, Stream: u, StreamSize: size,
	}, u
}

func TestAFileIsPassedOnAsItComes(t *testing.T) {
	for name, known := range map[string]bool{"size known": true, "chunked": false} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 1, nil)
			body, contentType := audioForm(t, "m", 8<<20, false)
			// The client sends the second half only after the engine has got something of the first.
			arrived := make(chan struct{})
			e := f.engines[0]
			e.does(func(w http.ResponseWriter, r *http.Request) {
				first := make([]byte, 100_000)
				if _, err := io.ReadFull(r.Body, first); err != nil {
					t.Errorf("read the beginning: %v", err)
				}
				close(arrived)
				r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(first), r.Body))
				e.read(text(200, `{"text":"hello"}`))(w, r)
			})
			half := len(body) / 2
			rest := readerFunc(func() io.Reader { <-arrived; return bytes.NewReader(body[half:]) })
			size := int64(-1)
			if known {
				size = int64(len(body))
			}
			call, from := transcribe(contentType, io.MultiReader(bytes.NewReader(body[:half]), &rest), size)
			to := &client{}
			if err := f.router.Serve(t.Context(), call, to); err != nil {
				t.Fatal(err)
			}
			if to.body.String() != `{"text":"hello"}` || len(e.bodies()) != 1 || !bytes.Equal(e.bodies()[0], body) {
				t.Errorf("the engine did not get the client's bytes; the client got %q", &to.body)
			}
			if !from.passed {
				t.Error("all of the file was kept")
			}
			f.settled()
		})
	}
}

// lazy makes its reader when it is first read.
type lazy struct {
	make func() io.Reader
	r    io.Reader
}

func readerFunc(f func() io.Reader) lazy { return lazy{make: f} }

func (l *lazy) Read(p []byte) (int, error) {
	if l.r == nil {
		l.r = l.make()
	}
	return l.r.Read(p)
}

func TestAModelAfterTheFileIsFound(t *testing.T) {
	f := start(t, 1, nil)
	body, contentType := audioForm(t, "m", 3<<20, true)
	call, _ := transcribe(contentType, bytes.NewReader(body), int64(len(body)))
	if err := f.router.Serve(t.Context(), call, &client{}); err != nil {
		t.Fatal(err)
	}
	if got := f.engines[0].bodies(); len(got) != 1 || !bytes.Equal(got[0], body) {
		t.Error("the engine did not get the client's bytes")
	}
	body, contentType = audioForm(t, "m", 33<<20, true)
	call, _ = transcribe(contentType, bytes.NewReader(body), int64(len(body)))
	err := f.router.Serve(t.Context(), call, &client{})
	if reasonOf(err) != apierror.BodyTooLarge || f.requests() != 1 {
		t.Errorf("a model behind 33 MB: %v, want body_too_large", err)
	}
}

func TestAnAliasIsReplacedInAForm(t *testing.T) {
	f := start(t, 1, func(_ *router.Params, _ *chooser.Config, r *registry.Config) {
		r.Aliases = map[string]string{"whisper-1": "m"}
	})
	body, contentType := audioForm(t, "whisper-1", 2<<20, false)
	want := bytes.Replace(body, []byte("\r\nwhisper-1\r\n"), []byte("\r\nm\r\n"), 1)
	call, _ := transcribe(contentType, bytes.NewReader(body), int64(len(body)))
	if err := f.router.Serve(t.Context(), call, &client{}); err != nil {
		t.Fatal(err)
	}
	if got := f.engines[0].bodies(); len(got) != 1 || !bytes.Equal(got[0], want) {
		t.Error("the engine's form differs in more than the model's name")
	}
}

func TestAnUploadIsRetriedOnlyWhileAllOfItIsThere(t *testing.T) {
	for name, c := range map[string]struct {
		size     int
		stream   bool
		requests int
	}{
		"small and streamed": {100_000, true, 2},
		"large and streamed": {5 << 20, true, 1},
		"large and at hand":  {5 << 20, false, 2}, // over gRPC the body is one message
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, 2, nil)
			// The engine refuses after it has read the whole file.
			for _, e := range f.engines {
				e.does(e.read(text(503, "loading")))
			}
			body, contentType := audioForm(t, "m", c.size, false)
			call, _ := transcribe(contentType, bytes.NewReader(body), int64(len(body)))
			if !c.stream {
				call.Body, call.Stream = body, nil
			}
			err := f.router.Serve(t.Context(), call, &client{})
			if reasonOf(err) != apierror.NoReplica || f.requests() != c.requests {
				t.Errorf("Serve() = %v after %d requests, want no_replica after %d", err, f.requests(), c.requests)
			}
			for _, e := range f.engines {
				for _, got := range e.bodies() {
					if !bytes.Equal(got, body) {
						t.Errorf("an engine got %d bytes that are not the client's %d", len(got), len(body))
					}
				}
			}
			f.settled()
		})
	}
}

// The replica closes every connection that it is sent a second request on.
func TestAnUploadIsNotLostOnAKeptConnection(t *testing.T) {
	f := start(t, 1, nil)
	e := f.engines[0]
	var seen sync.Map
	e.does(func(w http.ResponseWriter, r *http.Request) {
		if _, again := seen.LoadOrStore(r.RemoteAddr, true); again {
			panic(http.ErrAbortHandler)
		}
		e.read(text(200, "{}"))(w, r)
	})
	for _, size := range []int{100_000, 5 << 20} {
		for _, known := range []bool{true, false} {
			if err := f.router.Serve(t.Context(), chat(""), &client{}); err != nil {
				t.Fatal(err)
			}
			body, contentType := audioForm(t, "m", size, false)
			length := int64(-1)
			if known {
				length = int64(len(body))
			}
			call, _ := transcribe(contentType, bytes.NewReader(body), length)
			if err := f.router.Serve(t.Context(), call, &client{}); err != nil {
				t.Errorf("%d bytes, length known: %v: Serve() = %v", size, known, err)
			}
		}
	}
	f.settled()
}

func TestAClientWhoLeavesDuringAnUpload(t *testing.T) {
	t.Parallel()
	f := start(t, 2, nil)
	for _, e := range f.engines {
		e.does(e.read(text(200, "{}")))
	}
	body, contentType := audioForm(t, "m", 4<<20, false)
	gone := apierror.New(apierror.Cancelled, "the request body ended early", nil)
	call, _ := transcribe(contentType, io.MultiReader(bytes.NewReader(body[:2<<20]), iotest.ErrReader(gone)), int64(len(body)))
	err := f.router.Serve(t.Context(), call, &client{})
	if !errors.Is(err, gone) {
		t.Errorf("Serve() = %v, want %v", err, gone)
	}
	if len(f.engines[0].bodies())+len(f.engines[1].bodies()) != 0 || f.requests() > 1 {
		t.Errorf("an engine took a body that is not whole, or it was tried twice (%d requests)", f.requests())
	}
	f.settled()
}

func TestBodiesThatAreNoForms(t *testing.T) {
	f := start(t, 1, nil)
	for _, c := range []struct {
		contentType, body string
		reason            apierror.Reason
	}{
		{"application/json", `{"model":"m"}`, apierror.UnsupportedMediaType},
		{"multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nnobody\r\n--b--\r\n", apierror.ModelNotFound},
		{"multipart/form-data; boundary=b", "nothing of the kind", apierror.InvalidBody},
	} {
		call, _ := transcribe(c.contentType, bytes.NewReader([]byte(c.body)), int64(len(c.body)))
		if err := f.router.Serve(t.Context(), call, &client{}); reasonOf(err) != c.reason {
			t.Errorf("%q: Serve() = %v, want %v", c.body, err, c.reason)
		}
	}
	if f.requests() != 0 {
		t.Errorf("the engine got %d requests", f.requests())
	}
}
