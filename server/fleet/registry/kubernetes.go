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
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/check"
)

// KubernetesConfig makes replicas of the pods behind a Service, by its EndpointSlices.
type KubernetesConfig struct {
	// Service is the Service's name; the Service may be headless.
	Service string `yaml:"service"`
	// Namespace is the Service's namespace. Empty: kvpilot's own namespace.
	Namespace string `yaml:"namespace"`
	// Port is the port's name or number. Empty: the Service's only port.
	Port string `yaml:"port"`
	// TLS makes the URLs https.
	TLS bool `yaml:"tls"`
	// PodLabels is read or ignore: whether a pod's labels, annotations and environment variables set its model, engine, ports, adapters
	// and role (docs/kubernetes.md). Empty: read.
	PodLabels string `yaml:"pod_labels"`
	// Engines names the engine of pods that do not, by their model.
	Engines map[string]string `yaml:"engines"`
	// Template sets the other fields of each replica; its id and url must be empty.
	Template Spec `yaml:"template"`
	// MaxEndpoints bounds the replicas of the Service: endpoints beyond are left out, counted and logged. Zero: 4096.
	MaxEndpoints int `yaml:"max_endpoints"`
	// APIServer is the API server's URL. Empty: https://kubernetes.default.svc.
	APIServer string `yaml:"api_server"`
	// Credentials is a directory with the files token, ca.crt and namespace. Empty: the pod's service account,
	// /var/run/secrets/kubernetes.io/serviceaccount.
	Credentials string `yaml:"credentials"`
}

const (
	inClusterServer      = "https://kubernetes.default.svc"
	inClusterCredentials = "/var/run/secrets/kubernetes.io/serviceaccount"

	podLabelsRead   = "read"
	podLabelsIgnore = "ignore"

	// podWait is how long an endpoint waits for its pod, whose labels may say another port: the two arrive by watches of
	// their own.
	podWait = 5 * time.Second
)

func (k KubernetesConfig) validate() error {
	errs := []error{
		check.NotEmpty("service", k.Service),
		check.That(k.Template.ID == "" && k.Template.URL == "", "template", "id and url must be empty: they come from Kubernetes"),
		check.That(k.APIServer == "" || strings.HasPrefix(k.APIServer, "https://") || strings.HasPrefix(k.APIServer, "http://"),
			"api_server", "must have the form https://host:port, is %q", k.APIServer),
		check.AtLeast("max_endpoints", k.MaxEndpoints, 0),
		check.OneOf("pod_labels", k.PodLabels, "", podLabelsRead, podLabelsIgnore),
	}
	for _, model := range slices.Sorted(maps.Keys(k.Engines)) {
		_, err := readEngine(k.Engines[model])
		errs = append(errs, check.Within("engines."+model, err))
	}
	return errors.Join(errs...)
}

// cluster makes replicas of the pods of one Service.
type cluster struct {
	in     *intake
	conf   KubernetesConfig
	source string
	slices *collection[endpointSlice]
	pods   *collection[pod] // nil when pod labels are ignored
	wake   chan struct{}

	// Only the goroutine of run touches these.
	missed map[string]time.Time // endpoints whose pod is not known, since when
	faults map[string]string    // why an endpoint is no replica
	notes  *podNotes
	used   map[string]bool // pods that are replicas: the last ones to be left out
}

// limit is the largest number of replicas.
func (c *cluster) limit() int { return cmp.Or(c.conf.MaxEndpoints, defaultMaxEndpoints) }

// kubeSource is a Service with the addresses of replicas.
type kubeSource struct {
	in   *intake
	conf KubernetesConfig
}

// watch keeps the replicas of a Service up to date. While the API server does not
// answer, they stay as they are.
func (k *kubeSource) watch(ctx context.Context) error {
	conf, client, err := k.conf.connect()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	newCluster(k.in, conf, &kubeAPI{client: client, server: conf.APIServer, credentials: conf.Credentials}).run(ctx)
	return nil
}

// The collections of a cluster, as errors name them.
const (
	sliceList = "endpoint slices"
	podList   = "pods"
)

func newCluster(in *intake, conf KubernetesConfig, api *kubeAPI) *cluster {
	source := sourceKubernetes + ":" + conf.Namespace + "/" + conf.Service
	c := &cluster{in: in, conf: conf, source: source, wake: make(chan struct{}, 1), missed: map[string]time.Time{}, notes: newPodNotes(in, source)}
	namespace, most := "/namespaces/"+url.PathEscape(conf.Namespace), listedPerUsed*max(c.limit(), defaultMaxEndpoints)
	c.slices = &collection[endpointSlice]{
		api: api, most: most, what: sliceList, path: "/apis/discovery.k8s.io/v1" + namespace + "/endpointslices", owner: c,
		query: url.Values{"labelSelector": {"kubernetes.io/service-name=" + conf.Service}},
	}
	if conf.PodLabels != podLabelsIgnore {
		c.pods = &collection[pod]{api: api, most: most, what: podList, path: "/api/v1" + namespace + "/pods", owner: c}
	}
	return c
}

// changed implements kubeWatcher.
func (c *cluster) changed() { signal(c.wake) }

// failed implements kubeWatcher.
func (c *cluster) failed(what string, err error) {
	text := "Kubernetes watch failed, the old replicas are kept"
	if what == podList {
		text = "Kubernetes watch of pods failed, what their labels said is kept"
		if forbidden(err) {
			c.in.log.Warn("pods may not be read: their labels and annotations are not used; grant list and watch on pods, or set pod_labels: ignore",
				"source", c.source, "error", err)
			return
		}
	}
	c.in.metrics.sourceFailed(context.Background(), c.source)
	c.in.log.Warn(text, "source", c.source, "error", err)
}

// run follows the cluster until ctx ends.
func (c *cluster) run(ctx context.Context) {
	var watches sync.WaitGroup
	defer watches.Wait()
	watches.Go(func() { c.slices.run(ctx) })
	if c.pods != nil {
		watches.Go(func() { c.pods.run(ctx) })
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-timer.C:
		}
		if waits := c.offer(ctx); waits {
			timer.Reset(podWait)
		}
	}
}

// offering is one reading of all endpoints.
type offering struct {
	byID   map[replica.ID]Spec
	used   map[string]bool
	missed map[string]time.Time
	faults map[string]string
	left   map[string]int
	waits  bool
}

// offer makes replicas of all endpoints known. waits reports that an endpoint is left out until its pod is known.
func (c *cluster) offer(ctx context.Context) (waits bool) {
	var all []endpointSlice
	listed, cut := false, 0
	c.slices.read(func(objects map[string]endpointSlice, _, _ bool) {
		listed, cut = objects != nil, c.slices.cut
		all = slices.Collect(maps.Values(objects))
	})
	pods, tried, live := c.podsOf(all)
	if !listed || !tried {
		return false
	}
	slices.SortFunc(all, func(a, b endpointSlice) int { // IPv4 before IPv6: a pod that has both counts once
		return cmp.Or(cmp.Compare(a.AddressType, b.AddressType), cmp.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	o := offering{byID: map[replica.ID]Spec{}, used: map[string]bool{}, missed: map[string]time.Time{}, faults: map[string]string{}, left: map[string]int{}}
	for _, known := range [...]bool{true, false} { // above the limit, replicas stay and new endpoints are left out
		for _, slice := range all {
			for _, e := range slice.Endpoints {
				if name := e.podName(c.conf.Namespace); c.used[name] == known {
					c.offerOne(ctx, &o, e, slice, name, pods[name], live)
				}
			}
		}
	}
	if cut > 0 {
		o.left[leftLimit] += cut
	}
	c.faults, c.missed, c.used = o.faults, o.missed, o.used
	c.in.leaveOut(c.source, o.left, c.limit())
	c.notes.forget(pods)
	c.in.offer(c.source, slices.Collect(maps.Values(o.byID)))
	return o.waits
}

// maxFaults bounds the endpoints whose faults are logged one by one.
const maxFaults = 32

// offerOne makes a replica of one endpoint.
func (c *cluster) offerOne(ctx context.Context, o *offering, e endpoint, slice endpointSlice, name string, p *pod, live bool) {
	if len(o.byID) >= c.limit() && !o.used[name] {
		o.left[leftLimit]++
		return
	}
	if name != "" && p == nil && live && c.waitsFor(name, o.missed) {
		o.waits = true
		return
	}
	spec, err := c.spec(e, slice, p)
	if err != nil {
		reason := leftInvalid
		if errors.Is(err, errAddress) {
			reason = leftAddress
		}
		o.left[reason]++
		at := slice.Metadata.Name + " " + strings.Join(e.Addresses[:min(len(e.Addresses), 4)], ",")
		if at = at[:min(len(at), 2*maxNameLen)]; len(o.faults) >= maxFaults {
			return
		}
		if o.faults[at] = err.Error(); c.faults[at] != err.Error() {
			c.in.log.Error("endpoint cannot be a replica", "source", c.source, "endpoint", at, "error", err)
			c.in.metrics.sourceFailed(ctx, c.source)
		}
		return
	}
	if _, known := o.byID[spec.ID]; !known {
		o.byID[spec.ID] = spec
		if name != "" {
			o.used[name] = true
		}
	}
}

// podsOf returns the pods of the endpoints, by name. tried reports that they were asked for, live that a pod that exists is
// among them.
func (c *cluster) podsOf(all []endpointSlice) (pods map[string]*pod, tried, live bool) {
	if c.pods == nil {
		return nil, true, false
	}
	pods = map[string]*pod{}
	c.pods.read(func(objects map[string]pod, wasTried, isLive bool) {
		tried, live = wasTried, isLive
		for _, slice := range all {
			for _, e := range slice.Endpoints {
				name := e.podName(c.conf.Namespace)
				if p, ok := objects[name]; ok && pods[name] == nil {
					pods[name] = &p
				}
			}
		}
	})
	return pods, tried, live
}

// waitsFor reports whether an endpoint should still wait for its pod, and notes since when it does.
func (c *cluster) waitsFor(name string, missed map[string]time.Time) bool {
	since, ok := c.missed[name]
	if !ok {
		since = time.Now()
	}
	missed[name] = since
	return time.Since(since) < podWait
}

// spec fills the template for one endpoint. The probes decide whether a pod is ready; a pod
// that is being terminated drains.
func (c *cluster) spec(e endpoint, slice endpointSlice, p *pod) (Spec, error) {
	if len(e.Addresses) == 0 {
		return Spec{}, errors.New("endpoint without an address")
	}
	if err := checkEndpoint(e.Addresses[0], isNear(c.conf.APIServer)); err != nil {
		return Spec{}, err
	}
	s := c.conf.Template
	name := e.podName("")
	if name != "" {
		s.ID = replica.ID(name)
	}
	var facts podFacts
	if p != nil {
		facts = c.notes.of(s.ID, p)
	}
	port := facts.port
	if port == 0 {
		var ok bool
		if port, ok = slice.port(c.conf.Port); !ok {
			return Spec{}, fmt.Errorf("the Service has no port %q, or several and none is named", c.conf.Port)
		}
	}
	s.URL = httpsOr(c.conf.TLS) + net.JoinHostPort(e.Addresses[0], strconv.Itoa(port))
	if name == "" {
		s.ID = replica.ID(fmt.Sprintf("%s-%08x", c.conf.Service, uint32(xxh3.HashString(s.URL))))
	}
	s.Labels = map[string]string{}
	if e.Zone != nil {
		s.Labels["zone"] = *e.Zone
	}
	if e.Node != nil {
		s.Labels["node"] = *e.Node
	}
	maps.Copy(s.Labels, c.conf.Template.Labels)
	s.Leaving = e.Conditions.Terminating != nil && *e.Conditions.Terminating || p != nil && p.Metadata.DeletionTimestamp != nil
	facts.apply(&s, c.conf.Engines)
	return c.in.settings.complete(s)
}
