package openai_test

import (
	"bytes"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"testing"

	"github.com/kvpilot/kvpilot/server/openai"
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
		r, whole, err := openai.ReadForm(openai.Params{Route: openai.RouteTranscriptions}, contentType, source, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if r.Model != "whisper-1" || !r.Stream || r.Route != openai.RouteTranscriptions {
			t.Errorf("got %+v", r)
		}
		if read := len(body) - source.Len(); !fileFirst && read > 16<<10 {
			t.Errorf("%d bytes were read to find the model", read)
		}
		if got, err := io.ReadAll(whole); err != nil || !bytes.Equal(got, body) {
			t.Errorf("the body is not passed on as it was: %d bytes, %v", len(got), err)
		}
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
			_, _, err := openai.ReadForm(openai.Params{}, c.contentType, bytes.NewReader(c.body), 50_000)
			var bad *openai.BadRequest
			if !errors.As(err, &bad) || bad.Status != c.status {
				t.Errorf("got %v, want status %d", err, c.status)
			}
		})
	}
}
