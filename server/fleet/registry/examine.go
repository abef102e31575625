package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Examination has a replica's answers to each question of a probe. An error is nil when the question was answered.
type Examination struct {
	HealthError error
	// Models are the served models, base models first, limited to the operator's list.
	Models      []replica.Model
	ModelsError error
	// Version is vLLM's, empty when the answer does not say.
	Version      string
	VersionError error
	// Sources are where the ranks publish KV events, as the replica reports it; nil when it is not asked, because its version
	// lacks the route.
	Sources      []replica.Events
	SourcesError error
}

// Examine asks a replica every question of a probe once, with its key and certificates. It changes nothing; ok is false
// when there is no such replica.
func (r *Registry) Examine(ctx context.Context, id replica.ID) (e Examination, ok bool) {
	known := r.Snapshot().probers[id]
	if known == nil {
		return e, false
	}
	p := known.ask()
	_, e.HealthError = p.get(ctx, r.settings.now().Probe.Path)
	if body, err := p.get(ctx, "/v1/models"); err != nil {
		e.ModelsError = err
	} else if e.Models, e.ModelsError = readModels(body); len(p.spec.Models) > 0 {
		e.Models = p.spec.only(e.Models)
	}
	if body, err := p.get(ctx, "/version"); err != nil {
		e.VersionError = err
	} else {
		e.Version = readVersion(body).text
	}
	if !listsSources(e.Version) {
		return e, true
	}
	body, err := p.get(ctx, sourcesPath)
	if err == nil {
		e.Sources, err = readSources(body, p.spec.URL)
	}
	e.SourcesError = err
	return e, true
}

// Refused is the status of an answer that is not 200 to a question of a probe; 0 when err is none.
func Refused(err error) int {
	var refused statusError
	if errors.As(err, &refused) {
		return refused.status
	}
	return 0
}

// CredentialsWhat is the field What of a Kubernetes source whose credentials cannot be read. A registry does not start with such a one,
// or with a file that cannot be read.
const CredentialsWhat = "the API server's credentials"

// SourceExamination is the present list of one configured source of replicas.
type SourceExamination struct {
	// Setting is the source's place in the settings, for example "dns[0]".
	Setting string
	// What is the object that was examined.
	What string
	// Replicas is how many it lists.
	Replicas int
	Err      error
	// Forbidden says that the account lacks a right that Err names.
	Forbidden bool
}

// ExamineSources looks at each source of the settings once. It changes nothing.
func (r *Registry) ExamineSources(ctx context.Context) []SourceExamination {
	var list []SourceExamination
	if n := len(r.settings.now().Replicas); n > 0 {
		list = append(list, SourceExamination{Setting: "replicas", What: "the settings", Replicas: n})
	}
	for _, s := range r.sources {
		list = append(list, s.source.examine(ctx, s.setting)...)
	}
	return list
}

// shortWatch is how long a watch is tried.
const shortWatch = time.Second

// examine lists and watches the objects that the source needs.
func (k *kubeSource) examine(ctx context.Context, setting string) []SourceExamination {
	conf, client, err := k.conf.connect()
	if err != nil {
		return []SourceExamination{{Setting: setting, What: CredentialsWhat, Err: err}}
	}
	defer client.CloseIdleConnections()
	c := newCluster(k.in, conf, &kubeAPI{client: client, server: conf.APIServer, credentials: conf.Credentials})
	list := []SourceExamination{examineCollection(ctx, setting, c.slices)}
	refused := 0
	for _, s := range c.slices.objects {
		for _, e := range s.Endpoints {
			if len(e.Addresses) > 0 && checkEndpoint(e.Addresses[0], isNear(conf.APIServer)) != nil {
				refused++
				continue
			}
			list[0].Replicas++
		}
	}
	switch above := list[0].Replicas + c.slices.cut - c.limit(); {
	case list[0].Err != nil:
	case refused > 0:
		list[0].Err = fmt.Errorf("%d endpoints have addresses that no replica has (link-local, loopback, multicast, unspecified, or no IP address) and are refused", refused)
	case above > 0:
		list[0].Err = fmt.Errorf("%d endpoints are above max_endpoints (%d) and are left out", above, c.limit())
	}
	if c.pods != nil {
		list = append(list, examineCollection(ctx, setting, c.pods))
	}
	return list
}

// examine lists and watches the pool and its pods.
func (p *poolSource) examine(ctx context.Context, setting string) []SourceExamination {
	conf, client, err := p.conf.access().connect()
	if err != nil {
		return []SourceExamination{{Setting: setting, What: CredentialsWhat, Err: err}}
	}
	defer client.CloseIdleConnections()
	source := newPool(p.in, conf, &kubeAPI{client: client, server: conf.APIServer, credentials: conf.Credentials})
	found := examineCollection(ctx, setting, source.pools)
	object, known := source.pools.objects[conf.Service]
	switch selector := object.selector(); {
	case found.Err != nil:
	case !known:
		found.Err = fmt.Errorf("there is no InferencePool %s in namespace %s", conf.Service, conf.Namespace)
	case selector == "":
		found.Err = fmt.Errorf("the InferencePool %s selects nothing", conf.Service)
	default:
		pods := source.collect(selector)
		listed := examineCollection(ctx, setting, pods)
		for _, one := range pods.objects {
			if one.isReady() && !one.isLeaving() {
				found.Replicas += len(object.Spec.Ports)
			}
		}
		return []SourceExamination{found, listed}
	}
	return []SourceExamination{found}
}

// examineCollection lists and watches for a moment.
func examineCollection[T kubeObject](ctx context.Context, setting string, c *collection[T]) SourceExamination {
	version, err := c.list(ctx)
	if err == nil {
		short, cancel := context.WithTimeout(ctx, shortWatch)
		defer cancel()
		if _, _, err = c.watch(short, version); errors.Is(err, errTooOld) || short.Err() != nil && !forbidden(err) {
			err = nil
		}
	}
	return SourceExamination{Setting: setting, What: c.what, Err: err, Forbidden: forbidden(err) || unauthorized(err)}
}

// unauthorized reports whether the account's token is not accepted.
func unauthorized(err error) bool {
	var status kubeStatus
	return errors.As(err, &status) && status.code == http.StatusUnauthorized
}
