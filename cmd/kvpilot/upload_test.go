package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// audioForm is a form with a file of size bytes.
func audioForm(t *testing.T, model string, size int, fileFirst bool) (body []byte, contentType string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	file := func() {
		part, err := w.CreateFormFile("file", "speech.wav")
		if err != nil {
			t.Fatal(err)
		}
		part.Write(make([]byte, size))
	}
	if fileFirst {
		file()
	}
	if err := w.WriteField("model", model); err != nil {
		t.Fatal(err)
	}
	if !fileFirst {
		file()
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), w.FormDataContentType()
}

func upload(t *testing.T, url, contentType string, body io.Reader) answer {
	t.Helper()
	resp, err := http.Post(url+"/v1/audio/transcriptions", contentType, body)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: text, err: err}
}

func (f *fleet) model() string {
	f.t.Helper()
	resp, err := http.Get("http://" + f.http + "/v1/models")
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	var list struct{ Data []struct{ ID string } }
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || len(list.Data) == 0 {
		f.t.Fatalf("no models: %v", err)
	}
	return list.Data[0].ID
}

func TestAudioThroughTheRouterIsTheEnginesOwn(t *testing.T) {
	t.Parallel()
	// All bodies together may hold 6 MB: the uploads below are far more, and are not held.
	f := startFleet(t, fleetOptions{args: []string{"--set", "gateway.max_body_bytes=6000000", "--set", "gateway.max_bodies_bytes=6000000"}})
	model := f.model()
	for _, c := range []struct {
		name      string
		size      int
		fileFirst bool
		chunked   bool
	}{{"small", 1000, false, false}, {"file first", 300_000, true, false}, {"large", 5 << 20, false, false}, {"chunked", 5 << 20, false, true}} {
		t.Run(c.name, func(t *testing.T) {
			body, contentType := audioForm(t, model, c.size, c.fileFirst)
			want := upload(t, f.urls[0], contentType, bytes.NewReader(body))
			from := io.Reader(bytes.NewReader(body))
			if c.chunked {
				from = io.MultiReader(from) // hides its size
			}
			got := upload(t, "http://"+f.http, contentType, from)
			if got.err != nil || got.status != 200 || !bytes.Equal(got.body, want.body) {
				t.Errorf("through the router %d %q (%v), directly %d %q", got.status, got.body, got.err, want.status, want.body)
			}
		})
	}
	t.Run("many at once", func(t *testing.T) {
		body, contentType := audioForm(t, model, 4<<20, false)
		var group sync.WaitGroup
		for range 6 {
			group.Go(func() {
				if got := upload(t, "http://"+f.http, contentType, bytes.NewReader(body)); got.status != 200 {
					t.Errorf("status %d %q (%v): uploads are not to be held", got.status, got.body, got.err)
				}
			})
		}
		group.Wait()
	})
	t.Run("too large", func(t *testing.T) {
		body, contentType := audioForm(t, model, 7<<20, false)
		for _, from := range []io.Reader{bytes.NewReader(body), io.MultiReader(bytes.NewReader(body))} {
			// The answer may come while the body is still being sent, and the connection closes then.
			if got := upload(t, "http://"+f.http, contentType, from); got.err == nil && got.status != http.StatusRequestEntityTooLarge {
				t.Errorf("status %d %q, want 413", got.status, got.body)
			}
		}
	})
	t.Run("a client who leaves", func(t *testing.T) {
		body, contentType := audioForm(t, model, 2<<20, false)
		conn, err := net.Dial("tcp", f.http)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", contentType, len(body))
		conn.Write(body[:len(body)/2])
		f.eventually("the upload is on its way", func() bool {
			return f.metric("kvpilot_load_reservations") > 0 || f.metric("kvpilot_router_requests_in_flight") > 0
		})
		conn.Close()
		f.eventually("nothing is left of it", func() bool { return f.metric("kvpilot_router_requests_in_flight") == 0 })
	})
	t.Run("a model that nobody has", func(t *testing.T) {
		body, contentType := audioForm(t, "nobody", 1000, false)
		got := upload(t, "http://"+f.http, contentType, bytes.NewReader(body))
		if message, _, _, _ := got.openAIError(t); got.status != 404 || !strings.Contains(message, "nobody") {
			t.Errorf("status %d, %q", got.status, message)
		}
	})
}

func TestPathsThatOnlyAPoolKnows(t *testing.T) {
	const path = "/v1/brand/new?x=1"
	off := startFleet(t, fleetOptions{replicas: 1})
	body := fmt.Sprintf(`{"model":%q}`, off.model())
	got := off.post(path, body)
	if _, _, _, code := got.openAIError(t); got.status != 404 || code == "" {
		t.Errorf("by default: status %d %q, want a 404 of the router's", got.status, got.body)
	}
	off.stop()

	on := startFleet(t, fleetOptions{replicas: 1, args: []string{"--set", "router.unknown_routes=true"}})
	want := postTo(t, on.urls[0]+path, body)
	got = on.post(path, body)
	if got.status != want.status || !bytes.Equal(got.body, want.body) {
		t.Errorf("passed on: %d %q, the engine itself: %d %q", got.status, got.body, want.status, want.body)
	}
	if got := on.post(path, `{"model":"nobody"}`); got.status != 404 || !strings.Contains(string(got.body), "nobody") {
		t.Errorf("a model that nobody has: %d %q", got.status, got.body)
	}
}
