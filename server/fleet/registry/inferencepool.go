package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/check"
)

// InferencePoolConfig makes replicas of the pods that an InferencePool (inference.networking.k8s.io/v1) selects, one for each of its target ports.
type InferencePoolConfig struct {
	// Name is the InferencePool's name.
	Name string `yaml:"name"`
	// Namespace is the InferencePool's namespace. Empty: kvpilot's own namespace.
	Namespace string `yaml:"namespace"`
	// TLS makes the URLs https.
	TLS bool `yaml:"tls"`
	// PodLabels is read or ignore: whether a pod's labels, annotations and environment variables set its model, engine, events, adapters
	// and role (docs/kubernetes.md). Empty: read.
	PodLabels string `yaml:"pod_labels"`
	// Engines names the engine of pods that do not, by their model.
	Engines map[string]string `yaml:"engines"`
	// Template sets the other fields of each replica; its id and url must be empty. At the pool's second target port the events' ports
	// are one higher, and so on.
	Template Spec `yaml:"template"`
	// MaxEndpoints bounds the replicas of the pool: endpoints beyond are left out, counted and logged. Zero: 4096.
	MaxEndpoints int `yaml:"max_endpoints"`
	// APIServer is the API server's URL. Empty: https://kubernetes.default.svc.
	APIServer string `yaml:"api_server"`
	// Credentials is a directory with the files token, ca.crt and namespace. Empty: the pod's service account,
	// /var/run/secrets/kubernetes.io/serviceaccount.
	Credentials string `yaml:"credentials"`
}

func (c InferencePoolConfig) validate() error {
	errs := []error{check.NotEmpty("name", c.Name)}
	shared := c.access()
	shared.Service = "any"
	return errors.Join(append(errs, shared.validate())...)
}

// access has the settings that the source has in common with one of a Service.
func (c InferencePoolConfig) access() KubernetesConfig {
	return KubernetesConfig{
		Service: c.Name, Namespace: c.Namespace, TLS: c.TLS, PodLabels: c.PodLabels, Engines: c.Engines, Template: c.Template,
		MaxEndpoints: c.MaxEndpoints, APIServer: c.APIServer, Credentials: c.Credentials,
	}
}

// poolSource is an InferencePool whose pods are replicas.
type poolSource struct {
	in   *intake
	conf InferencePoolConfig
}

// watch keeps the replicas of a pool up to date. While the API server does not answer, they stay as they are.
func (p *poolSource) watch(ctx context.Context) error {
	conf, client, err := p.conf.access().connect()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	newPool(p.in, conf, &kubeAPI{client: client, server: conf.APIServer, credentials: conf.Credentials}).run(ctx)
	return nil
}

// poolList is the collection of InferencePools, as errors name it.
const poolList = "inference pools"

// pool makes replicas of the pods of one InferencePool.
type pool struct {
	in     *intake
	conf   KubernetesConfig
	source string
	api    *kubeAPI
	pools  *collection[poolObject]
	wake   chan struct{}

	// Only the goroutine of run touches these.
	members *members // nil until the pool is known
	notes   *podNotes
	used    map[string]string // the address of each pod that is a replica
	faults  map[string]string // why an endpoint is no replica
	absent  bool              // it was logged that there is no such pool
}

func newPool(in *intake, conf KubernetesConfig, api *kubeAPI) *pool {
	source := sourcePool + conf.Namespace + "/" + conf.Service
	p := &pool{in: in, conf: conf, source: source, api: api, wake: make(chan struct{}, 1), notes: newPodNotes(in, source)}
	p.pools = &collection[poolObject]{
		api: api, most: 1, what: poolList, owner: p,
		path:  "/apis/inference.networking.k8s.io/v1/namespaces/" + url.PathEscape(conf.Namespace) + "/inferencepools",
		query: url.Values{"fieldSelector": {"metadata.name=" + conf.Service}},
	}
	return p
}

// limit is the largest number of replicas.
func (p *pool) limit() int { return cmp.Or(p.conf.MaxEndpoints, defaultMaxEndpoints) }

// changed implements kubeWatcher.
func (p *pool) changed() { signal(p.wake) }

// failed implements kubeWatcher.
func (p *pool) failed(what string, err error) {
	p.in.metrics.sourceFailed(context.Background(), p.source)
	p.in.log.Warn("Kubernetes watch failed, the old replicas are kept", "source", p.source, "watch", what, "error", err)
}

// members are the pods of one selector, which are followed.
type members struct {
	selector string
	pods     *collection[pod]
	end      context.CancelFunc
	done     chan struct{}
}

// follow begins to mirror the pods of a selector.
func (p *pool) follow(ctx context.Context, selector string) *members {
	ctx, end := context.WithCancel(ctx)
	m := &members{selector: selector, end: end, done: make(chan struct{}), pods: p.collect(selector)}
	go func() {
		defer close(m.done)
		m.pods.run(ctx)
	}()
	return m
}

func (p *pool) collect(selector string) *collection[pod] {
	return &collection[pod]{
		api: p.api, most: listedPerUsed * max(p.limit(), defaultMaxEndpoints), what: podList, owner: p,
		path: "/api/v1/namespaces/" + url.PathEscape(p.conf.Namespace) + "/pods", query: url.Values{"labelSelector": {selector}},
	}
}

// stop ends the mirror; m may be nil.
func (m *members) stop() {
	if m != nil {
		m.end()
		<-m.done
	}
}

// run follows the pool until ctx ends.
func (p *pool) run(ctx context.Context) {
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() { p.pools.run(ctx) })
	defer func() { p.members.stop() }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		object, listed := p.current()
		if !listed {
			continue
		}
		selector := object.selector()
		if p.members == nil || p.members.selector != selector {
			p.members.stop()
			p.members = nil
			if selector != "" {
				p.members = p.follow(ctx, selector)
			}
		}
		p.offer(ctx, object)
	}
}

// current is the pool as the server has it; the zero value when there is none. listed is false until the server has answered.
func (p *pool) current() (object poolObject, listed bool) {
	known := false
	p.pools.read(func(objects map[string]poolObject, _, _ bool) {
		listed = objects != nil
		object, known = objects[p.conf.Service]
	})
	if listed && !known && !p.absent {
		p.in.log.Warn("there is no such InferencePool: it has no replicas", "source", p.source)
	}
	p.absent = listed && !known
	return object, listed
}

// offer makes replicas of the pool's pods.
func (p *pool) offer(ctx context.Context, object poolObject) {
	var pods map[string]*pod
	cut := 0
	if p.members != nil {
		listed := false
		p.members.pods.read(func(objects map[string]pod, _, _ bool) {
			listed, cut, pods = objects != nil, p.members.pods.cut, make(map[string]*pod, len(objects))
			for name, one := range objects {
				pods[name] = &one
			}
		})
		if !listed {
			return
		}
	}
	o := poolOffering{pool: p, ports: object.Spec.Ports, used: map[string]string{}, faults: map[string]string{}, left: map[string]int{}}
	names := slices.Sorted(maps.Keys(pods))
	for _, known := range [...]bool{true, false} { // above the limit, replicas stay and new endpoints are left out
		for _, name := range names {
			if _, was := p.used[name]; was == known {
				o.add(ctx, name, pods[name])
			}
		}
	}
	if cut > 0 {
		o.left[leftLimit] += cut * max(1, len(o.ports))
	}
	p.used, p.faults = o.used, o.faults
	p.in.leaveOut(p.source, o.left, p.limit())
	p.notes.forget(pods)
	p.in.offer(p.source, o.specs)
}

// poolOffering is one reading of all pods.
type poolOffering struct {
	pool   *pool
	ports  poolPorts
	specs  []Spec
	used   map[string]string
	faults map[string]string
	left   map[string]int
}

// add makes replicas of one pod's ports. A pod that was ready keeps them while it is not ready and until it is gone, without new requests:
// the blocks in its engine's cache are not forgotten.
func (o *poolOffering) add(ctx context.Context, name string, p *pod) {
	at := p.Status.IP
	known := o.pool.used[name] == at && at != ""
	if !known && (at == "" || p.isLeaving() || !p.isReady()) {
		return
	}
	var facts podFacts
	if o.pool.conf.PodLabels != podLabelsIgnore {
		facts = o.pool.notes.of(replica.ID(name), p)
	}
	active := activePorts(p)
	for place, port := range o.ports {
		if active != nil && !slices.Contains(active, port.Number) {
			continue
		}
		if len(o.specs) >= o.pool.limit() {
			o.left[leftLimit]++
			continue
		}
		spec, err := o.spec(name, p, facts, place, port.Number)
		if err != nil {
			o.refuse(ctx, net.JoinHostPort(at, strconv.Itoa(port.Number)), name, err)
			continue
		}
		o.specs = append(o.specs, spec)
		o.used[name] = at
	}
}

// refuse notes an endpoint that makes no replica, and logs it once.
func (o *poolOffering) refuse(ctx context.Context, at, name string, err error) {
	reason := leftInvalid
	if errors.Is(err, errAddress) {
		reason = leftAddress
	}
	o.left[reason]++
	key := (name + " " + at)[:min(len(name)+1+len(at), 2*maxNameLen)]
	if len(o.faults) >= maxFaults {
		return
	}
	if o.faults[key] = err.Error(); o.pool.faults[key] != err.Error() {
		o.pool.in.log.Error("endpoint cannot be a replica", "source", o.pool.source, "endpoint", key, "error", err)
		o.pool.in.metrics.sourceFailed(ctx, o.pool.source)
	}
}

// spec fills the template for the engine at one of a pod's ports.
func (o *poolOffering) spec(name string, p *pod, facts podFacts, place, port int) (Spec, error) {
	conf := &o.pool.conf
	if err := checkEndpoint(p.Status.IP, isNear(conf.APIServer)); err != nil {
		return Spec{}, err
	}
	if port < 1 || port > 65535 {
		return Spec{}, fmt.Errorf("target port %d is none", port)
	}
	s := conf.Template
	s.ID = replica.ID(name)
	if len(o.ports) > 1 {
		s.ID = replica.ID(name + "-" + strconv.Itoa(port))
	}
	s.URL = httpsOr(conf.TLS) + net.JoinHostPort(p.Status.IP, strconv.Itoa(port))
	s.Labels = map[string]string{}
	if zone := p.Metadata.Labels["topology.kubernetes.io/zone"]; zone != "" {
		s.Labels["zone"] = zone
	}
	if p.Spec.Node != "" {
		s.Labels["node"] = p.Spec.Node
	}
	maps.Copy(s.Labels, conf.Template.Labels)
	facts.apply(&s, conf.Engines)
	s.Events = s.Events.shifted(place)
	s.Leaving, s.pod.unready = p.isLeaving(), !p.isReady()
	return o.pool.in.settings.complete(s)
}

// shifted moves the ports of the addresses by n: engines that share a pod publish at ports that follow each other, as vLLM's data-parallel
// ranks do.
func (e EventsSpec) shifted(n int) EventsSpec {
	move := func(address string) string {
		colon := strings.LastIndexByte(address, ':')
		port, err := strconv.Atoi(address[colon+1:])
		if colon < 0 || err != nil || strings.Contains(address, "{rank}") {
			return address
		}
		return address[:colon+1] + strconv.Itoa(port+n)
	}
	if n > 0 {
		e.Endpoint, e.Replay = move(e.Endpoint), move(e.Replay)
	}
	return e
}
