package openai_test

import (
	"bytes"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

func form(t *testing.T, fileFirst bool, fileSize int) (body []byte, contentType string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	file := func() {
		part, err := w.CreateFormFile("file", "model.wav")
		if err != nil {
			t.Fatal(err)
		}
		part.Write(bytes.Repeat([]byte("\r\n--x"), fileSize/5))
	}
	if fileFirst {
		file()
	}
	w.WriteField("stream", "true")
	w.WriteField("model", "whisper-1")
	if !fileFirst {
		file()
	}
	w.Close()
	return b.Bytes(), w.FormDataContentType()
}

func TestAFormIsReadUpToItsModelAndPassedOnWhole(t *testing.T) {
	for _, fileFirst := range []bool{false, true} {
		body, contentType := form(t, fileFirst, 100_000)
		source := bytes.NewReader(body)
		f, err := openai.ReadForm(openai.Params{Route: openai.RouteTranscriptions, Header: http.Header{"X-Session-Id": {"s"}}, SessionHeaders: []string{"x-session-id"}}, contentType, source, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if f.Model != "whisper-1" || !f.Stream || f.Route != openai.RouteTranscriptions || f.Session != "s" {
			t.Errorf("got %+v", f.Request)
		}
		if read := len(body) - source.Len(); !fileFirst && read > 16<<10 {
			t.Errorf("%d bytes were read to find the model", read)
		}
		rest, err := io.ReadAll(source)
		if err != nil || !bytes.Equal(append(bytes.Clone(f.Head), rest...), body) {
			t.Errorf("the body is not passed on as it was: %d and %d bytes, %v", len(f.Head), len(rest), err)
		}
		renamed := append(bytes.Clone(f.HeadFor("large-v3")), rest...)
		if want := bytes.Replace(body, []byte("\r\n\r\nwhisper-1\r\n"), []byte("\r\n\r\nlarge-v3\r\n"), 1); !bytes.Equal(renamed, want) {
			t.Errorf("file first %v: the renamed body differs in more than the name", fileFirst)
		}
	}
}

func TestAFormsOwnNameInItsFileIsNotReplaced(t *testing.T) {
	body := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nwhisper-1\r\n" +
		"--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper-1\r\n--b--\r\n"
	f, err := openai.ReadForm(openai.Params{}, "multipart/form-data; boundary=b", strings.NewReader(body), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	at := strings.LastIndex(body, "whisper-1")
	if got, want := string(f.HeadFor("x")), body[:at]+"x"+body[at+len("whisper-1"):]; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAnErrorOfTheBodyIsNotTheForms(t *testing.T) {
	gone := errors.New("the client left")
	body, contentType := form(t, true, 100_000)
	_, err := openai.ReadForm(openai.Params{}, contentType, io.MultiReader(bytes.NewReader(body[:5000]), iotest.ErrReader(gone)), 1<<20)
	if err != gone {
		t.Errorf("got %v, want %v", err, gone)
	}
}

func TestFormsThatCannotBeRead(t *testing.T) {
	late, contentType := form(t, true, 100_000)
	cases := []struct {
		name, contentType string
		body              []byte
		status            int
	}{
		{"JSON", "application/json", []byte("{}"), http.StatusUnsupportedMediaType},
		{"no boundary", "multipart/form-data", []byte("{}"), http.StatusUnsupportedMediaType},
		{"not a form", "multipart/form-data; boundary=x", []byte("hello"), http.StatusBadRequest},
		{"cut off", contentType, late[:5000], http.StatusBadRequest},
		{"model too late", contentType, late, http.StatusRequestEntityTooLarge},
		{"endless value", "multipart/form-data; boundary=x", append([]byte("--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n"), bytes.Repeat([]byte("m"), 9000)...), http.StatusBadRequest},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := openai.ReadForm(openai.Params{}, c.contentType, bytes.NewReader(c.body), 50_000)
			var bad *openai.BadRequest
			if !errors.As(err, &bad) || bad.Status != c.status {
				t.Errorf("got %v, want status %d", err, c.status)
			}
		})
	}
}
