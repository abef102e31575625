package resume

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
)

// readLines sends a request, with the header that says how its stream continues unless that is empty, and hands over the head of the answer and
// each line of it.
func readLines(t *testing.T, url, body, how string, head func(http.Header), line func(string)) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if how != "" {
		req.Header.Set("X-Kvpilot-Resume", how)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	head(resp.Header)
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line(lines.Text())
	}
}
