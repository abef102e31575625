package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/sleep"
)

const (
	kubePage     = 50
	maxKubePage  = 16 << 20
	maxKubeEvent = 4 << 20 // an object has 1.5 MiB at most
	// listedPerUsed bounds the kept part of a list, relative to its usable part.
	listedPerUsed = 4

	maxKubeError = 4 << 10
	kubeTimeout  = 30 * time.Second

	// A watch that breaks begins again after kubeBackOff: changes count within a second also then. When the next ones bring nothing
	// and break within kubeSteady, the pause grows.
	kubeBackOff    = 125 * time.Millisecond
	kubeSteady     = time.Second
	kubeMaxBackOff = 30 * time.Second
	// kubeForbiddenWait is the time between attempts to read objects that the account may not read.
	kubeForbiddenWait = 5 * time.Minute
	// kubeWatch is how long one watch lasts. The token is read again for the next one.
	kubeWatch = 5 * time.Minute
)

type objectMeta struct {
	Name            string            `json:"name"`
	ResourceVersion string            `json:"resourceVersion"`
	Continue        string            `json:"continue"`
	Labels          map[string]string `json:"labels"`
	Annotations     map[string]string `json:"annotations"`
	// Created is when the object was made, in a form that sorts by time.
	Created string `json:"creationTimestamp"`
	// DeletionTimestamp is set while the object is being deleted.
	DeletionTimestamp *string `json:"deletionTimestamp"`
}

// kubeObject is an object of a collection.
type kubeObject interface {
	meta() objectMeta
	// weight is how much of the collection's bound it takes.
	weight() int
}

// kubeWatcher follows a collection. Its methods must not block.
type kubeWatcher interface {
	// changed is called after every change, and after an attempt to list.
	changed()
	// failed is called with the reason for which a list or a watch ended, unless that is expected.
	failed(what string, err error)
}

// collection mirrors the objects of one list of the API server: it lists, then watches, and lists again when the server
// has forgotten the version. While the server cannot be read, the objects stay as they are. items may be called at once
// with run.
type collection[T kubeObject] struct {
	api  *kubeAPI
	what string // for errors: "endpoint slices"
	path string
	// most bounds the weight of all objects; others are left out.
	most int
	// query selects the objects of the list.
	query url.Values
	owner kubeWatcher

	mu      sync.Mutex
	objects map[string]T // by name; guarded by mu
	tried   bool         // guarded by mu
	live    bool         // guarded by mu
	sum     int          // the weight of objects; guarded by mu
	cut     int          // the weight of the objects left out since the last list; guarded by mu
}

// put enters an object unless there is no room for it; mu is held.
func (c *collection[T]) put(name string, object T) {
	c.drop(name)
	n := object.weight()
	if c.sum+n > c.most {
		c.cut += n
		return
	}
	c.objects[name] = object
	c.sum += n
}

// drop removes an object; mu is held.
func (c *collection[T]) drop(name string) {
	if old, known := c.objects[name]; known {
		c.sum -= old.weight()
		delete(c.objects, name)
	}
}

// run follows the list until ctx ends.
func (c *collection[T]) run(ctx context.Context) {
	wait := kubeBackOff
	for {
		worked, err := c.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if worked {
			wait = kubeBackOff
		}
		if !errors.Is(err, errTooOld) {
			c.owner.failed(c.what, err)
		}
		c.set(func() { c.tried, c.live = true, false })
		turn := wait/2 + time.Duration(rand.Int64N(int64(wait)))
		if forbidden(err) {
			turn = max(turn, kubeForbiddenWait)
		}
		if !sleep.For(ctx, turn) {
			return
		}
		wait = min(2*wait, kubeMaxBackOff)
	}
}

// set changes the state and reports the change.
func (c *collection[T]) set(change func()) {
	c.mu.Lock()
	change()
	c.mu.Unlock()
	c.owner.changed()
}

// read calls do with the objects, by name; do must not keep the map. tried reports that a list was attempted, live that
// the objects are the server's at this moment.
func (c *collection[T]) read(do func(objects map[string]T, tried, live bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do(c.objects, c.tried, c.live)
}

// follow lists once and then watches until something fails. worked reports that a watch brought changes or lasted.
func (c *collection[T]) follow(ctx context.Context) (worked bool, err error) {
	version, err := c.list(ctx)
	if err != nil {
		return false, err
	}
	for wait := kubeBackOff; ; wait = min(2*wait, kubeMaxBackOff) {
		began := time.Now()
		next, changes, err := c.watch(ctx, version)
		version = next
		lasted := time.Since(began) >= kubeSteady
		if changes > 0 || lasted {
			worked, wait = true, kubeBackOff
		}
		if err != nil {
			return worked, err
		}
		if !lasted && !sleep.For(ctx, wait) { // it should last minutes
			return worked, ctx.Err()
		}
	}
}

// list replaces the contents by all objects of the list, and returns the version that a watch continues from.
func (c *collection[T]) list(ctx context.Context) (version string, err error) {
	found, sum, cut := map[string]T{}, 0, 0
	query := url.Values{"limit": {strconv.Itoa(kubePage)}}
	for {
		var page struct {
			Metadata objectMeta `json:"metadata"`
			Items    capped[T]  `json:"items"`
		}
		if err := c.page(ctx, query, &page); err != nil {
			return "", fmt.Errorf("list %s: %w", c.what, err)
		}
		for _, object := range page.Items {
			n := object.weight()
			if sum+n > c.most {
				cut += n
				continue
			}
			found[object.meta().Name] = object
			sum += n
		}
		version = page.Metadata.ResourceVersion
		if page.Metadata.Continue == "" || cut > c.most { // a list without an end is cut off
			c.set(func() { c.objects, c.tried, c.live, c.sum, c.cut = found, true, true, sum, cut })
			return version, nil
		}
		query.Set("continue", page.Metadata.Continue)
	}
}

func (c *collection[T]) page(ctx context.Context, query url.Values, into any) error {
	ctx, cancel := context.WithTimeout(ctx, kubeTimeout)
	defer cancel()
	body, err := c.get(ctx, query)
	if err != nil {
		return err
	}
	defer body.Close()
	bounded := &eventReader{from: body, left: maxKubePage}
	return json.NewDecoder(bounded).Decode(into)
}

// watch follows changes from a version on, until the server ends the watch as it should, and
// returns the version to continue from, and how many changes there were.
func (c *collection[T]) watch(ctx context.Context, version string) (_ string, changes int, err error) {
	ctx, cancel := context.WithTimeout(ctx, kubeWatch+kubeTimeout) // a server that forgets to end it is left
	defer cancel()
	body, err := c.get(ctx, url.Values{
		"watch": {"1"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {version},
		"timeoutSeconds": {strconv.Itoa(int(kubeWatch / time.Second))},
	})
	if err != nil {
		return "", 0, fmt.Errorf("watch %s: %w", c.what, err)
	}
	defer body.Close()
	bounded := &eventReader{from: body}
	for events := json.NewDecoder(bounded); ; {
		bounded.left = maxKubeEvent
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := events.Decode(&event); errors.Is(err, io.EOF) {
			return version, changes, nil
		} else if err != nil {
			return "", changes, fmt.Errorf("watch %s: %w", c.what, err)
		}
		if event.Type == "ERROR" {
			return "", changes, watchError(c.what, event.Object)
		}
		var object T
		if err := json.Unmarshal(event.Object, &object); err != nil {
			return "", changes, fmt.Errorf("watch %s: %w", c.what, err)
		}
		meta := object.meta()
		if meta.ResourceVersion != "" {
			version = meta.ResourceVersion
		}
		switch event.Type {
		case "ADDED", "MODIFIED":
			changes++
			c.set(func() { c.put(meta.Name, object) })
		case "DELETED":
			changes++
			c.set(func() { c.drop(meta.Name) })
		}
	}
}

// maxListed bounds each list in an object: an EndpointSlice has at most 1,000 endpoints.
const maxListed = 1000

// capped is a list of which no more than maxListed elements are kept: many empty ones fit into a short text.
type capped[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (l *capped[T]) UnmarshalJSON(text []byte) (err error) {
	*l, err = readCapped[T](text, maxListed)
	return err
}

// readCapped reads at most the first elements of a list; null is an empty one.
func readCapped[T any](text []byte, most int) (list []T, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	begin, err := d.Token()
	if err != nil || begin == nil {
		return nil, err
	}
	if begin != json.Delim('[') {
		return nil, errors.New("a list is expected")
	}
	for d.More() && len(list) < most {
		var one T
		if err := d.Decode(&one); err != nil {
			return list, err
		}
		list = append(list, one)
	}
	return list, nil
}

// errTooLong: a page or an event is larger than any that an API server sends.
var errTooLong = errors.New("the answer is too long")

// eventReader reads at most left bytes.
type eventReader struct {
	from io.Reader
	left int
}

// Read implements io.Reader.
func (r *eventReader) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, errTooLong
	}
	n, err := r.from.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err
}

func watchError(what string, object []byte) error {
	var status struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal(object, &status); err != nil {
		return fmt.Errorf("watch %s: %w", what, err)
	}
	if status.Code == http.StatusGone {
		return errTooOld
	}
	return fmt.Errorf("watch %s: %w", what, kubeStatus{status.Code, status.Message})
}

func (c *collection[T]) get(ctx context.Context, query url.Values) (io.ReadCloser, error) {
	for name, values := range c.query {
		query[name] = values
	}
	return c.api.get(ctx, c.path, query)
}
