package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// httpClient makes a connection for each request: vLLM closes idle ones after five seconds.
var httpClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// call sends a request and reads the whole answer.
func call(ctx context.Context, method, url string, body []byte, header ...string) (int, []byte, error) {
	resp, err := open(ctx, method, url, body, header...)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, b, err
}

func open(ctx context.Context, method, url string, body []byte, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return httpClient.Do(req)
}

// object is a JSON object.
type object = map[string]any

// post sends a JSON value and gives the JSON answer; anything but 200 is an error.
func post(ctx context.Context, url string, body object, header ...string) (answer, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	resp, err := open(ctx, http.MethodPost, url, raw, header...)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	if resp.StatusCode != http.StatusOK {
		return answer{}, fmt.Errorf("POST %s: status %d: %.300s", url, resp.StatusCode, b)
	}
	a := answer{header: resp.Header, raw: b}
	return a, json.Unmarshal(b, &a.value)
}

// answer is a JSON answer.
type answer struct {
	header http.Header
	raw    []byte
	value  any
}

// at walks into the answer; nil when there is nothing.
func (a answer) at(path ...any) any {
	v := a.value
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(object)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

func (a answer) number(path ...any) int {
	f, _ := a.at(path...).(float64)
	return int(f)
}

func (a answer) ids(path ...any) []uint32 {
	list, _ := a.at(path...).([]any)
	if list == nil {
		return nil
	}
	ids := make([]uint32, len(list))
	for i, v := range list {
		f, _ := v.(float64)
		ids[i] = uint32(f)
	}
	return ids
}

// cached is the engine's own word on the cache hit.
func (a answer) cached() int {
	return a.number("usage", "prompt_tokens_details", "cached_tokens")
}
