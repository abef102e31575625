package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"
)

// checkRuntimeAdapter loads an adapter on every replica by one call, uses it on each, and drops it again.
func (r *answers) checkRuntimeAdapter(ctx context.Context) (string, error) {
	if r.sim {
		return "", fmt.Errorf("the simulator loads no adapters at run time: %w", errSkip)
	}
	adapter := func(path string, body object) error {
		raw, err := json.Marshal(body)
		if err != nil {
			return err
		}
		resp, err := open(ctx, http.MethodPost, r.router.url()+path, raw)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		each := resp.Header.Get("X-Kvpilot-Adapter")
		if resp.StatusCode != http.StatusOK || strings.Count(each, "=200") != len(r.engines) {
			return fmt.Errorf("%s: status %d (%s): %.300s", path, resp.StatusCode, each, text)
		}
		return nil
	}
	if err := adapter("/v1/load_lora_adapter", object{"lora_name": "second", "lora_path": filepath.Join(r.cache, modelFolder, "lora")}); err != nil {
		return "", err
	}
	ask := object{"model": "second", "prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}
	for _, e := range r.engines {
		if err := until(ctx, func() error {
			_, err := post(ctx, r.router.url()+"/v1/completions", ask, "X-Kvpilot-Pin", e.id)
			return err
		}); err != nil {
			return "", fmt.Errorf("the adapter on %s: %w", e.id, err)
		}
	}
	if err := adapter("/v1/unload_lora_adapter", object{"lora_name": "second"}); err != nil {
		return "", err
	}
	if err := until(ctx, func() error {
		raw, _ := json.Marshal(ask)
		if code, text, err := call(ctx, http.MethodPost, r.router.url()+"/v1/completions", raw); err != nil || code != http.StatusNotFound {
			return fmt.Errorf("status %d: %.200s (%w)", code, text, err)
		}
		return nil
	}); err != nil {
		return "", fmt.Errorf("the adapter that was dropped: %w", err)
	}
	return fmt.Sprintf("loaded on %d replicas by one call, used on each, dropped: 404 then", len(r.engines)), nil
}

// until tries for ten seconds: a router sees models when it next asks for them.
func until(ctx context.Context, try func() error) error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := try()
		if err == nil || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// checkCohere compares the answers to a chat in Cohere's format, direct and routed.
func (r *answers) checkCohere(ctx context.Context) (string, error) {
	const path = "/cohere/v2/chat"
	body := []byte(`{"model":"tiny","messages":[{"role":"user","content":"hello"}],"max_tokens":6,"temperature":0,"seed":1}`)
	code, direct, err := call(ctx, http.MethodPost, r.engines[0].url()+path, body)
	switch {
	case err != nil:
		return "", err
	case code == http.StatusNotFound:
		return "", fmt.Errorf("this version has no %s: %w", path, errSkip)
	case code != http.StatusOK:
		return "", fmt.Errorf("direct: status %d: %.300s", code, direct)
	}
	code, routed, err := call(ctx, http.MethodPost, r.router.url()+path, body, "X-Kvpilot-Pin", r.engines[0].id)
	if err != nil || code != http.StatusOK {
		return "", fmt.Errorf("routed: status %d: %.300s (%w)", code, routed, err)
	}
	var a, b object
	if err := json.Unmarshal(direct, &a); err != nil {
		return "", err
	}
	if err := json.Unmarshal(routed, &b); err != nil {
		return "", err
	}
	for _, o := range []object{a, b} { // fields that differ between any two
		delete(o, "id")
		delete(o, "usage") // the second one finds the prompt in the cache
	}
	if !reflect.DeepEqual(a, b) || a["message"] == nil {
		return "", fmt.Errorf("direct %.400s, routed %.400s", direct, routed)
	}
	return "the same answer, direct and routed", nil
}

// checkRealtime compares the results of a WebSocket's handshake; the model cannot hear, so later frames are not compared.
func (r *answers) checkRealtime(ctx context.Context) (string, error) {
	direct, err := shake(ctx, strings.TrimPrefix(r.engines[0].url(), "http://"))
	if err != nil {
		return "", err
	}
	routed, err := shake(ctx, r.router.http)
	if err != nil {
		return "", err
	}
	if direct != routed {
		return "", fmt.Errorf("the handshake is answered %d, and routed %d", direct, routed)
	}
	return fmt.Sprintf("a handshake is answered %d, direct and routed", direct), nil
}

// shake requests a WebSocket and returns the answer's status.
func shake(ctx context.Context, address string) (int, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintf(conn, "GET /v1/realtime HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", address); err != nil {
		return 0, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	resp.Body.Close()
	return resp.StatusCode, nil
}

// checkOwnTests runs vLLM's entry-point tests against the replica and against the router before it; a test that ends
// differently is a failure.
func (r *run) checkOwnTests(ctx context.Context) (string, error) {
	uv := filepath.Join(filepath.Dir(r.python), "uv")
	if err := r.logged(ctx, "install.log", uv, "pip", "install", "--python", r.python, "--no-progress",
		"pytest", "pytest-asyncio", "pytest-timeout", "jsonschema", "regex", "openai", "anthropic", "cohere", "httpx", "requests"); err != nil {
		return "", err
	}
	err := r.logged(ctx, "entrypoints.log", r.python, filepath.Join("lab", "e2e", "entrypoints.py"), r.tests,
		r.engines[0].url(), r.router.url(), "tiny", filepath.Join(r.logs, "entrypoints"))
	text, readErr := os.ReadFile(filepath.Join(r.logs, "entrypoints.log"))
	if readErr != nil {
		return "", readErr
	}
	detail := strings.ReplaceAll(strings.TrimSpace(string(text[max(0, len(text)-8000):])), "\n", "\n      ")
	if err != nil {
		return "", fmt.Errorf("%w\n      %s", err, detail)
	}
	return detail, nil
}
