package registry

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
)

// The names of sources. DNS sources are named "dns:" and the name looked up, Kubernetes sources
// "kubernetes:", the namespace, "/" and the Service, InferencePools "inferencepool:", the namespace, "/" and the name.
const (
	sourceStatic     = "static"
	sourceFile       = "file"
	sourceDNS        = "dns:"
	sourceKubernetes = "kubernetes"
	sourcePool       = "inferencepool:"
	sourceRegistered = "registered"
)

// source is a configured origin of replicas, which lists them again whenever they change.
type source interface {
	// watch offers the replicas to the intake until ctx ends. While the source cannot be read, they stay as they are.
	watch(ctx context.Context) error
	// examine reads the source once, and offers nothing. setting is its place in the settings.
	examine(ctx context.Context, setting string) []SourceExamination
}

// configured is a source with its place in the settings.
type configured struct {
	setting string
	source  source
}

// sources are the configured ones that change by themselves.
func (in *intake) sources(resolver Resolver) []configured {
	var list []configured
	c := in.settings.now()
	if c.File != "" {
		list = append(list, configured{"file", &fileSource{in, c.File}})
	}
	for i, d := range c.DNS {
		list = append(list, configured{fmt.Sprintf("dns[%d]", i), &dnsSource{in, d, resolver}})
	}
	for i, k := range c.Kubernetes {
		list = append(list, configured{fmt.Sprintf("kubernetes[%d]", i), &kubeSource{in, k}})
	}
	for i, p := range c.InferencePools {
		list = append(list, configured{fmt.Sprintf("inference_pools[%d]", i), &poolSource{in, p}})
	}
	return list
}

// intake takes the sources' replicas for the core, and counts and logs their faults.
type intake struct {
	settings *settings
	inbox    *inbox
	log      *slog.Logger
	metrics  *metrics
	left     leftOut
}

// offer replaces the replicas that a source lists.
func (in *intake) offer(source string, specs []Spec) {
	in.inbox.put(func(c *core) { c.list(source, specs) })
}

// leaveOut notes which endpoints of a source are no replicas now, and logs when that has changed.
func (in *intake) leaveOut(source string, counts map[string]int, limit int) {
	if !in.left.set(source, counts) || len(counts) == 0 {
		return
	}
	in.log.Error("endpoints of a source are left out: bad addresses are refused, and those above the limit are not used",
		"source", source, "bad_addresses", counts[leftAddress], "above_limit", counts[leftLimit], "limit", limit, "invalid", counts[leftInvalid])
}

// httpsOr is the scheme of a source's replicas.
func httpsOr(tls bool) string {
	if tls {
		return "https://"
	}
	return "http://"
}

// noRedirect keeps a token from going elsewhere, and an answer from coming from there.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
