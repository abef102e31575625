package registry_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// apiObject is an object of the server, as JSON has it.
type apiObject = map[string]any

// apiServer is an API server with any kinds of objects: pages of a list that belong to one version, label and field selectors (an object that
// no longer matches is DELETED for a watch), bookmarks, versions that are forgotten, watches that break.
type apiServer struct {
	*httptest.Server
	dir string

	mu      sync.Mutex
	version int
	oldest  int // versions before it are forgotten
	kinds   map[string]map[string]apiObject
	log     []apiChange
	more    chan struct{} // closed at the next change
	cut     chan struct{} // closed to break all watches
	pages   map[string][]apiObject
	missing map[string]bool // paths that are not there
	lists   int
	watches int
	errs    []string
}

// apiChange is one change: what an object was and is; nil for none.
type apiChange struct {
	version  int
	path     string
	was, now apiObject
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{
		dir: t.TempDir(), version: 100, oldest: 100, kinds: map[string]map[string]apiObject{}, more: make(chan struct{}), cut: make(chan struct{}),
		pages: map[string][]apiObject{}, missing: map[string]bool{},
	}
	a.Server = httptest.NewTLSServer(http.HandlerFunc(a.serve))
	t.Cleanup(func() {
		a.breakWatches(false)
		a.CloseClientConnections()
		a.Close()
		for _, e := range a.errs {
			t.Error(e)
		}
	})
	write(t, filepath.Join(a.dir, "ca.crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})))
	write(t, filepath.Join(a.dir, "token"), "t\n")
	write(t, filepath.Join(a.dir, "namespace"), "models")
	return a
}

// put makes an object, or changes it; nil removes it.
func (a *apiServer) put(path, name string, object apiObject) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	was := a.kinds[path][name]
	if a.kinds[path] == nil {
		a.kinds[path] = map[string]apiObject{}
	}
	if object == nil {
		delete(a.kinds[path], name)
	} else {
		meta, _ := object["metadata"].(apiObject)
		if meta == nil {
			meta = apiObject{}
		}
		meta = maps.Clone(meta)
		meta["name"], meta["resourceVersion"] = name, strconv.Itoa(a.version)
		object = maps.Clone(object)
		object["metadata"] = meta
		a.kinds[path][name] = object
	}
	a.log = append(a.log, apiChange{a.version, path, was, object})
	close(a.more)
	a.more = make(chan struct{})
}

// forget makes all versions before the present one too old.
func (a *apiServer) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.oldest, a.log = a.version, nil
	a.pages = map[string][]apiObject{}
}

// breakWatches ends all watches; forgetting also forgets what they saw.
func (a *apiServer) breakWatches(forgetting bool) {
	if forgetting {
		a.forget()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.cut)
	a.cut = make(chan struct{})
}

// selects reports whether an object is one of a query.
func selects(object apiObject, labelSelector, fieldSelector string) bool {
	if object == nil {
		return false
	}
	meta := object["metadata"].(apiObject)
	labels, _ := meta["labels"].(map[string]string)
	for term := range strings.SplitSeq(labelSelector, ",") {
		if name, value, ok := strings.Cut(term, "="); ok && labels[name] != value {
			return false
		}
	}
	name, named := strings.CutPrefix(fieldSelector, "metadata.name=")
	return !named || meta["name"] == name
}

func (a *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if r.Header.Get("Authorization") != "Bearer t" {
		http.Error(w, "{}", http.StatusUnauthorized)
		return
	}
	a.mu.Lock()
	missing := a.missing[r.URL.Path]
	a.mu.Unlock()
	switch {
	case missing:
		http.Error(w, `{"code":404}`, http.StatusNotFound)
	case q.Get("watch") != "":
		a.watch(w, r)
	default:
		a.list(w, r)
	}
}

// list answers with pages of three objects.
func (a *apiServer) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	a.mu.Lock()
	defer a.mu.Unlock()
	token := q.Get("continue")
	var rest []apiObject
	if token == "" {
		a.lists++
		for _, name := range slices.Sorted(maps.Keys(a.kinds[r.URL.Path])) {
			if object := a.kinds[r.URL.Path][name]; selects(object, q.Get("labelSelector"), q.Get("fieldSelector")) {
				rest = append(rest, object)
			}
		}
		token = strconv.Itoa(a.version) + "/" + strconv.Itoa(rand.Int())
	} else {
		var ok bool
		if rest, ok = a.pages[token]; !ok {
			http.Error(w, `{"code":410,"reason":"Expired"}`, http.StatusGone)
			return
		}
	}
	version, _, _ := strings.Cut(token, "/")
	meta := apiObject{"resourceVersion": version}
	page := rest[:min(3, len(rest))]
	if rest = rest[len(page):]; len(rest) > 0 {
		next := version + "/" + strconv.Itoa(rand.Int())
		a.pages[next] = rest
		meta["continue"] = next
	}
	_ = json.NewEncoder(w).Encode(apiObject{"metadata": meta, "items": page}) // a client that left is no problem
}

// watch sends changes after a version.
func (a *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	since, err := strconv.Atoi(q.Get("resourceVersion"))
	a.mu.Lock()
	a.watches++
	if err != nil {
		a.errs = append(a.errs, "a watch without a version: "+r.URL.String())
	}
	cut := a.cut
	a.mu.Unlock()
	send := func(kind string, object any) {
		_ = json.NewEncoder(w).Encode(apiObject{"type": kind, "object": object})
	} // as above
	flush := http.NewResponseController(w).Flush
	w.WriteHeader(http.StatusOK)
	for {
		a.mu.Lock()
		old, news, more, version := since < a.oldest, []apiChange{}, a.more, a.version
		for _, c := range a.log {
			if c.version > since && c.path == r.URL.Path {
				news = append(news, c)
			}
		}
		a.mu.Unlock()
		if old {
			send("ERROR", apiObject{"kind": "Status", "code": 410, "reason": "Expired"})
			return
		}
		for _, c := range news {
			is, was := selects(c.now, q.Get("labelSelector"), q.Get("fieldSelector")), selects(c.was, q.Get("labelSelector"), q.Get("fieldSelector"))
			switch {
			case is && was:
				send("MODIFIED", c.now)
			case is:
				send("ADDED", c.now)
			case was:
				gone := maps.Clone(c.was)
				meta := maps.Clone(gone["metadata"].(apiObject))
				meta["resourceVersion"] = strconv.Itoa(c.version)
				gone["metadata"] = meta
				send("DELETED", gone)
			}
		}
		if q.Get("allowWatchBookmarks") != "" && version > since {
			send("BOOKMARK", apiObject{"metadata": apiObject{"resourceVersion": strconv.Itoa(version)}})
		}
		since = version
		_ = flush() // as above
		select {
		case <-more:
		case <-r.Context().Done():
			return
		case <-cut:
			if rand.IntN(2) == 0 {
				fmt.Fprint(w, `{"type":"ADDED","obj`) // in the middle of a line
				_ = flush()                           // as above
				panic(http.ErrAbortHandler)
			}
			return
		}
	}
}
