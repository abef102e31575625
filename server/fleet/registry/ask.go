package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
	"github.com/kvpilot/kvpilot/server/wire/socket"
)

const maxProbeBody = 4 << 20

// asker puts the questions of probes to one replica. It belongs to one goroutine.
type asker struct {
	*probing
	spec   Spec
	access credentials
	missed string // the model of the spec that the replica was seen not to list
}

// result is the result of one probe. models and version are nil when they were not asked for.
type result struct {
	at      time.Time
	err     error
	refused bool // the port is closed
	mute    bool // nothing came back in time
	own     bool // this machine had no room for a connection
	near    bool // the machine at its address answers, or did
	models  []replica.Model
	version *version
	// sources are where the replica's ranks publish KV events, when it was asked and answered.
	sources *[]replica.Events
}

type version struct {
	text string
	rust bool
}

// probe asks for health and, when they are due, for the models and the version.
func (a *asker) probe(ctx context.Context, pulse *pulse, due dues) (res result) {
	began := time.Now()
	pulse.ask(began)
	var way whence
	_, err := a.get(traced(ctx, &way), a.settings.now().Probe.Path)
	res.mute = err != nil && ctx.Err() == nil && timedOut(err)
	if !res.mute {
		pulse.answer(time.Now(), time.Since(began))
	}
	if err == nil && due.models {
		res.models, err = a.models(ctx)
	}
	if err == nil && due.version {
		body, failed := a.get(ctx, "/version")
		res.version = &version{} // a server in between may hide it; nothing depends on it
		if failed == nil {
			res.version = readVersion(body)
		}
	}
	res.at, res.err = time.Now(), err
	res.own = socket.OwnFault(err)
	closed := errors.Is(err, syscall.ECONNREFUSED)
	res.refused = closed || notFound(err)
	res.near = way.connected || closed
	if res.own || res.refused {
		pulse.excuse()
	}
	return res
}

// timedOut reports whether the time for an answer was over.
func timedOut(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

func notFound(err error) bool {
	var dns *net.DNSError
	return errors.As(err, &dns) && dns.IsNotFound
}

// get returns the body of a 200 answer.
func (a *asker) get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, a.settings.now().Probe.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(tlspeer.With(ctx, a.access.peer), http.MethodGet, a.spec.URL+path, nil)
	if err != nil {
		return nil, fmt.Errorf("probe %s: %w", path, err)
	}
	if !a.access.key.IsEmpty() {
		req.Header.Set("Authorization", "Bearer "+a.access.key.Reveal())
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeBody+1))
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, statusError{path, resp.StatusCode, endsInV1(a.spec.URL)}
	case err != nil:
		return nil, fmt.Errorf("probe %s: read: %w", path, err)
	case len(body) > maxProbeBody:
		return nil, fmt.Errorf("probe %s: the answer is above %d bytes", path, maxProbeBody)
	}
	return body, nil
}

// sources asks where the replica's ranks publish KV events; nil when there was no answer. A server
// without the route publishes none that it could list.
func (a *asker) sources(ctx context.Context) *[]replica.Events {
	body, err := a.get(ctx, sourcesPath)
	var refused statusError
	switch {
	case errors.As(err, &refused) && refused.status < 500:
		return &[]replica.Events{}
	case err != nil:
		return nil
	}
	list, err := readSources(body, a.spec.URL)
	if err != nil && a.spec.asks() {
		a.log.Warn("the replica's KV event sources cannot be used; set events.endpoint, and bind where the engine dials", "replica", a.spec.ID, "error", err)
	}
	if err != nil {
		return &[]replica.Events{}
	}
	return &list
}

// statusError is an answer that is not 200.
type statusError struct {
	path   string
	status int
	v1     bool // the replica's URL ends in /v1
}

// Error names the path and the status.
func (e statusError) Error() string {
	hint := ""
	if e.v1 && e.status == http.StatusNotFound {
		hint = ": " + removeV1
	}
	return fmt.Sprintf("probe %s: status %d%s", e.path, e.status, hint)
}

// removeV1 is what to do when requests go to .../v1/v1/models.
const removeV1 = "remove /v1 from the replica's url: kvpilot adds it where it belongs"

// endsInV1 reports a URL as clients of OpenAI's API have it. A replica behind a proxy may have such a base URL.
func endsInV1(url string) bool { return strings.HasSuffix(strings.TrimRight(url, "/"), "/v1") }

// models are the models that the replica lists, or that the operator named.
func (a *asker) models(ctx context.Context) ([]replica.Model, error) {
	body, err := a.get(ctx, "/v1/models")
	if err != nil {
		if len(a.spec.Models) > 0 {
			return a.spec.only(nil), nil // the operator's list is enough
		}
		return nil, err
	}
	listed, err := readModels(body)
	narrowed, missing := a.spec.narrow(listed)
	if missing != "" && a.spec.pod.model != a.missed {
		a.missed = missing
		a.log.Warn("the replica does not list the model that its pod names: the label has no effect", "replica", a.spec.ID, "model", missing)
	}
	if len(a.spec.Models) > 0 && (a.spec.pod.model == "" || missing != "") {
		return a.spec.only(listed), nil
	}
	if err == nil && len(listed) == 0 {
		err = errors.New("probe /v1/models: no models")
	}
	return narrowed, err
}
