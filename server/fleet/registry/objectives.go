package registry

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
)

// objectivePaths are the API groups of InferenceObjectives, the newer first: where a cluster has it, older ones do not count.
var objectivePaths = []string{"/apis/llm-d.ai/v1alpha2", "/apis/inference.networking.x-k8s.io/v1alpha2"}

// maxObjectives bounds the objectives of a namespace.
const maxObjectives = 4096

// objectiveObject is the part of an InferenceObjective that matters here.
type objectiveObject struct {
	Metadata objectMeta `json:"metadata"`
	Spec     struct {
		Priority int `json:"priority"`
		Pool     struct {
			Name string `json:"name"`
		} `json:"poolRef"`
	} `json:"spec"`
}

func (o objectiveObject) meta() objectMeta { return o.Metadata }

func (o objectiveObject) weight() int { return 1 }

// Objectives are the InferenceObjectives of the pools that the settings name: names with a priority. Priority may be called at once with Run.
type Objectives struct {
	log   *slog.Logger
	pools []InferencePoolConfig
	known []atomic.Pointer[map[string]int] // by pool
}

// NewObjectives makes the objectives of the settings' InferencePools. log may be nil.
func NewObjectives(c Config, log *slog.Logger) *Objectives {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Objectives{log: log, pools: c.InferencePools, known: make([]atomic.Pointer[map[string]int], len(c.InferencePools))}
}

// Priority returns the priority of an objective, higher first. ok is false when no pool has one of that name; of two pools that have one,
// the first of the settings counts.
func (o *Objectives) Priority(name string) (priority int, ok bool) {
	for i := range o.known {
		if known := o.known[i].Load(); known != nil {
			if priority, ok = (*known)[name]; ok {
				return priority, true
			}
		}
	}
	return 0, false
}

// Run follows the API servers until ctx ends. While they cannot be read, the objectives stay as they are.
func (o *Objectives) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	for i, pool := range o.pools {
		conf, client, err := pool.access().connect()
		if err != nil {
			return err
		}
		defer client.CloseIdleConnections()
		f := &objectiveFeed{log: o.log.With("inference_pool", conf.Namespace+"/"+conf.Service), pool: conf.Service, to: &o.known[i], wake: make(chan struct{}, 1)}
		for _, path := range objectivePaths {
			f.groups = append(f.groups, &collection[objectiveObject]{
				api: &kubeAPI{client: client, server: conf.APIServer, credentials: conf.Credentials}, most: maxObjectives, what: "inference objectives",
				path: path + "/namespaces/" + url.PathEscape(conf.Namespace) + "/inferenceobjectives", query: url.Values{}, owner: f,
			})
		}
		all.Go(func() { f.run(ctx) })
	}
	<-ctx.Done()
	return nil
}

// objectiveFeed follows the objectives of one pool.
type objectiveFeed struct {
	log    *slog.Logger
	pool   string
	groups []*collection[objectiveObject]
	to     *atomic.Pointer[map[string]int]
	wake   chan struct{}
}

// changed implements kubeWatcher.
func (f *objectiveFeed) changed() { signal(f.wake) }

// failed implements kubeWatcher. A cluster may have neither group.
func (f *objectiveFeed) failed(_ string, err error) {
	var status kubeStatus
	switch {
	case errors.As(err, &status) && status.code == http.StatusNotFound:
	case forbidden(err):
		f.log.Warn("inference objectives may not be read: requests have no priority by them; grant list and watch on inferenceobjectives", "error", err)
	default:
		f.log.Warn("Kubernetes watch of inference objectives failed, the old ones are kept", "error", err)
	}
}

func (f *objectiveFeed) run(ctx context.Context) {
	var watches sync.WaitGroup
	defer watches.Wait()
	for _, group := range f.groups {
		watches.Go(func() { group.run(ctx) })
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
			f.publish()
		}
	}
}

// publish takes the objectives of the newest group that the cluster has.
func (f *objectiveFeed) publish() {
	for _, group := range f.groups {
		found := map[string]int{}
		listed := false
		group.read(func(objects map[string]objectiveObject, _, _ bool) {
			listed = objects != nil
			for name, object := range objects {
				if object.Spec.Pool.Name == f.pool || object.Spec.Pool.Name == "" {
					found[name] = object.Spec.Priority
				}
			}
		})
		if listed {
			f.to.Store(&found)
			return
		}
	}
}
