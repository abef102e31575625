package registry

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/check"
)

// KubernetesConfig makes replicas of the pods behind a Service, by its EndpointSlices.
type KubernetesConfig struct {
	// Service is the Service's name; the Service may be headless.
	Service string `yaml:"service"`
	// Namespace is the Service's namespace. Empty: the one that kvpilot runs in.
	Namespace string `yaml:"namespace"`
	// Port is the port's name or number. Empty: the Service's only port.
	Port string `yaml:"port"`
	// TLS makes the URLs https.
	TLS bool `yaml:"tls"`
	// Template sets the other fields of each replica; its id and url must be empty.
	Template Spec `yaml:"template"`
	// APIServer is the API server's URL. Empty: https://kubernetes.default.svc.
	APIServer string `yaml:"api_server"`
	// Credentials is a directory with the files token, ca.crt and namespace. Empty: the pod's service account,
	// /var/run/secrets/kubernetes.io/serviceaccount.
	Credentials string `yaml:"credentials"`
}

const (
	inClusterServer      = "https://kubernetes.default.svc"
	inClusterCredentials = "/var/run/secrets/kubernetes.io/serviceaccount"

	kubeBackOff    = time.Second
	kubeMaxBackOff = 30 * time.Second
	// kubeWatch is how long one watch lasts. The token is read again for the next one.
	kubeWatch = 5 * time.Minute
)

func (k KubernetesConfig) validate() error {
	return errors.Join(
		check.NotEmpty("service", k.Service),
		check.That(k.Template.ID == "" && k.Template.URL == "", "template", "id and url must be empty: they come from Kubernetes"),
		check.That(k.APIServer == "" || strings.HasPrefix(k.APIServer, "https://") || strings.HasPrefix(k.APIServer, "http://"),
			"api_server", "must have the form https://host:port, is %q", k.APIServer),
	)
}

// cluster follows the EndpointSlices of one Service.
type cluster struct {
	r      *Registry
	conf   KubernetesConfig
	source string
	client *http.Client
	slices map[string]endpointSlice // by name
}

// watchKubernetes keeps the replicas of a Service up to date. While the API server does not
// answer, they stay as they are.
func (r *Registry) watchKubernetes(ctx context.Context, conf KubernetesConfig) error {
	conf.APIServer = cmp.Or(strings.TrimRight(conf.APIServer, "/"), inClusterServer)
	conf.Credentials = cmp.Or(conf.Credentials, inClusterCredentials)
	if conf.Namespace == "" {
		text, err := os.ReadFile(path.Join(conf.Credentials, "namespace"))
		if err != nil {
			return fmt.Errorf("kubernetes: namespace of service %s: %w", conf.Service, err)
		}
		conf.Namespace = strings.TrimSpace(string(text))
	}
	client, err := kubeClient(conf)
	if err != nil {
		return fmt.Errorf("kubernetes: %w", err)
	}
	defer client.CloseIdleConnections()
	c := &cluster{r: r, conf: conf, client: client, source: sourceKubernetes + ":" + conf.Namespace + "/" + conf.Service}
	wait := kubeBackOff
	for {
		listed, err := c.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if listed {
			wait = kubeBackOff
		}
		if !errors.Is(err, errTooOld) {
			r.metrics.sourceFailed(ctx, c.source)
			r.log.Warn("Kubernetes watch failed, the old replicas are kept", "source", c.source, "error", err)
		}
		if !pause(ctx, wait/2+time.Duration(rand.Int64N(int64(wait)))) {
			return nil
		}
		wait = min(2*wait, kubeMaxBackOff)
	}
}

func kubeClient(conf KubernetesConfig) (*http.Client, error) {
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
	}
	if strings.HasPrefix(conf.APIServer, "https://") {
		pem, err := os.ReadFile(path.Join(conf.Credentials, "ca.crt"))
		if err != nil {
			return nil, fmt.Errorf("certificate authority: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, errors.New("certificate authority: no certificate in ca.crt")
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: transport}, nil
}

// follow lists once and then watches until something fails. listed reports whether the list succeeded.
func (c *cluster) follow(ctx context.Context) (listed bool, err error) {
	version, err := c.list(ctx)
	if err != nil {
		return false, err
	}
	c.offer(ctx)
	for {
		began := time.Now()
		if version, err = c.watch(ctx, version); err != nil {
			return true, err
		}
		if time.Since(began) < kubeBackOff && !pause(ctx, kubeBackOff) { // it should last minutes
			return true, ctx.Err()
		}
	}
}

// offer makes replicas of all endpoints known.
func (c *cluster) offer(ctx context.Context) {
	byID := map[replica.ID]Spec{}
	names := slices.SortedFunc(maps.Keys(c.slices), func(a, b string) int {
		return cmp.Or(cmp.Compare(c.slices[a].AddressType, c.slices[b].AddressType), cmp.Compare(a, b))
	})
	for _, name := range names { // IPv4 before IPv6: a pod that has both counts once
		slice := c.slices[name]
		port, ok := slice.port(c.conf.Port)
		if !ok {
			if len(slice.Endpoints) > 0 {
				c.r.log.Error("Service has no such port, or several and none is named", "source", c.source, "port", c.conf.Port)
				c.r.metrics.sourceFailed(ctx, c.source)
			}
			continue
		}
		for _, e := range slice.Endpoints {
			spec, err := c.spec(e, port)
			if err != nil {
				c.r.log.Error("endpoint cannot be a replica", "source", c.source, "error", err)
				c.r.metrics.sourceFailed(ctx, c.source)
				continue
			}
			if _, known := byID[spec.ID]; !known {
				byID[spec.ID] = spec
			}
		}
	}
	c.r.offer(c.source, slices.Collect(maps.Values(byID)))
}

// spec fills the template for one endpoint. The probes decide whether a pod is ready; a pod
// that is being terminated drains.
func (c *cluster) spec(e endpoint, port int) (Spec, error) {
	if len(e.Addresses) == 0 {
		return Spec{}, errors.New("endpoint without an address")
	}
	scheme := "http://"
	if c.conf.TLS {
		scheme = "https://"
	}
	s := c.conf.Template
	s.URL = scheme + net.JoinHostPort(e.Addresses[0], strconv.Itoa(port))
	if e.Target != nil && e.Target.Kind == "Pod" {
		s.ID = replica.ID(e.Target.Name)
	} else {
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
	s.leaving = e.Conditions.Terminating != nil && *e.Conditions.Terminating
	s, err := s.complete(c.r.config().Events)
	if err != nil {
		return s, err
	}
	_, err = c.r.keys.Load().of(s, false)
	return s, err
}
