package registry

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
)

// policyGroups are the API groups of the kinds that say something about the requests of InferencePools, the newer first: where a cluster
// has it, older ones do not count.
var policyGroups = []string{"/apis/llm-d.ai/v1alpha2", "/apis/inference.networking.x-k8s.io/v1alpha2"}

// maxPolicies bounds the objects of a kind in a namespace.
const maxPolicies = 4096

// poolRef names the pool of a policy.
type poolRef struct {
	Name string `json:"name"`
}

// policyFeed follows the objects of one kind for one pool.
type policyFeed[T kubeObject] struct {
	log    *slog.Logger
	what   string // for logs: "inference objectives"
	groups []*collection[T]
	wake   chan struct{}
}

// followPolicies publishes the objects of a kind in the namespaces of the pools, by name, after each change and until ctx ends. While an API
// server cannot be read, nothing is published. publish is called by one goroutine for each pool; the objects are valid during the call.
func followPolicies[T kubeObject](ctx context.Context, pools []InferencePoolConfig, log *slog.Logger, plural, what string, publish func(i int, pool string, objects map[string]T)) error {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	for i, pool := range pools {
		conf, client, err := pool.access().connect()
		if err != nil {
			return err
		}
		defer client.CloseIdleConnections()
		f := &policyFeed[T]{
			log: log.With("inference_pool", conf.Namespace+"/"+conf.Service), what: what, wake: make(chan struct{}, 1),
		}
		for _, group := range policyGroups {
			f.groups = append(f.groups, &collection[T]{
				api: &kubeAPI{client: client, server: conf.APIServer, credentials: conf.Credentials}, most: maxPolicies, what: what,
				path: group + "/namespaces/" + url.PathEscape(conf.Namespace) + "/" + plural, query: url.Values{}, owner: f,
			})
		}
		all.Go(func() { f.run(ctx, func(objects map[string]T) { publish(i, conf.Service, objects) }) })
	}
	<-ctx.Done()
	return nil
}

// changed implements kubeWatcher.
func (f *policyFeed[T]) changed() { signal(f.wake) }

// failed implements kubeWatcher. A cluster may have neither group.
func (f *policyFeed[T]) failed(_ string, err error) {
	var status kubeStatus
	switch {
	case errors.As(err, &status) && status.code == http.StatusNotFound:
	case forbidden(err):
		f.log.Warn("may not be read and have no effect; grant list and watch", "what", f.what, "error", err)
	default:
		f.log.Warn("Kubernetes watch failed, the old objects are kept", "what", f.what, "error", err)
	}
}

// run publishes the objects of the newest group that the cluster has.
func (f *policyFeed[T]) run(ctx context.Context, publish func(objects map[string]T)) {
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
		}
		for _, group := range f.groups {
			listed := false
			group.read(func(objects map[string]T, _, _ bool) {
				if listed = objects != nil; listed {
					publish(objects)
				}
			})
			if listed {
				break
			}
		}
	}
}
