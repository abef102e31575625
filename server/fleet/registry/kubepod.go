package registry

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// pod is the part of a core/v1 Pod that matters here.
type pod struct {
	Metadata objectMeta `json:"metadata"`
	Spec     struct {
		Node       string               `json:"nodeName"`
		Containers capped[podContainer] `json:"containers"`
	} `json:"spec"`
	Status struct {
		IP         string               `json:"podIP"`
		Conditions capped[podCondition] `json:"conditions"`
	} `json:"status"`
}

type (
	podCondition struct {
		Type   string `json:"type"`
		Status string `json:"status"`
	}
	podContainer struct {
		Env capped[podVariable] `json:"env"`
	}
	podVariable struct {
		Name  string `json:"name"`
		Value string `json:"value"` // empty when it comes from elsewhere
	}
)

func (p pod) meta() objectMeta { return p.Metadata }

func (p pod) weight() int { return 1 }

// isReady reports whether the cluster sends requests to the pod.
func (p pod) isReady() bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c podCondition) bool { return c.Type == "Ready" && c.Status == "True" })
}

// isLeaving reports whether the pod is being deleted.
func (p pod) isLeaving() bool { return p.Metadata.DeletionTimestamp != nil }

// podFacts are a pod's statements about its engine. Zero fields are not stated.
type podFacts struct {
	model, engine, role string
	transfer            podTransfer
	port, metricsPort   int
	eventsPort          int
	replayPort          int
	ranks               int
	// events says that KV events are published (or, false, that they are not); nil when nothing is said.
	events *bool
	// adapters are the LoRA adapters to serve, where all is not set.
	adapters *adapterRule
}

// adapterRule limits the LoRA adapters of a replica.
type adapterRule struct{ names []string }

// The names by which a pod says something, the first first: as a label, then as an annotation. Then come the
// environment variables of its containers.
var podNames = struct {
	model, engine, role, connector, group, domain, store, instance, bootstrap, port, metricsPort, eventsPort, replayPort, ranks, events, adapters, noAdapters []string
	modelEnv, engineEnv                                                                                                                                       []string
}{
	model:       []string{"kvpilot.model", "model.aibrix.ai/name", "llm-d.ai/model", "aibrix.ai/model", "aibrix.ai/name"},
	engine:      []string{"kvpilot.engine", "model.aibrix.ai/engine", "llm-d.ai/engine-type", "aibrix.ai/engine"},
	role:        []string{"kvpilot.role", "llm-d.ai/role", "role-name"},
	connector:   []string{"kvpilot.kv-connector"},
	group:       []string{"kvpilot.kv-group"},
	bootstrap:   []string{"kvpilot.kv-bootstrap"},
	domain:      []string{"kvpilot.kv-domain"},
	store:       []string{"kvpilot.kv-store"},
	instance:    []string{"kvpilot.kv-instance"},
	port:        []string{"kvpilot.port", "model.aibrix.ai/port", "aibrix.ai/port"},
	metricsPort: []string{"kvpilot.metrics-port", "model.aibrix.ai/metric-port", "aibrix.ai/metric-port"},
	eventsPort:  []string{"kvpilot.events-port"},
	replayPort:  []string{"kvpilot.replay-port"},
	ranks:       []string{"kvpilot.ranks"},
	events:      []string{"kvpilot.events", "model.aibrix.ai/kv-events-enabled"},
	adapters:    []string{"kvpilot.adapters"},
	noAdapters:  []string{"adapter.model.aibrix.ai/enabled"},
	modelEnv:    []string{"MODEL_NAME", "MODEL"},
	engineEnv:   []string{"INFERENCE_ENGINE"},
}

const (
	engineVLLM = "vllm"

	maxNameLen  = 256
	maxAdapters = 1024
	// shownLen bounds the logged part of a value.
	shownLen = 64
)

// complaint is a value of a pod that cannot be used.
type complaint struct {
	pod   replica.ID
	name  string
	value string
}

// podNotes keep the facts read of pods. One goroutine uses them.
type podNotes struct {
	in     *intake
	source string
	facts  map[replica.ID]podVersion
	wrong  map[complaint]struct{} // complaints logged about pods that exist
}

// podVersion is one version of a pod.
type podVersion struct {
	version string
	facts   podFacts
}

func newPodNotes(in *intake, source string) *podNotes {
	return &podNotes{in: in, source: source, facts: map[replica.ID]podVersion{}, wrong: map[complaint]struct{}{}}
}

// of reads a pod, once for each version of it. A statement that cannot be used is logged once and counts as not made.
func (n *podNotes) of(id replica.ID, p *pod) podFacts {
	if known, ok := n.facts[id]; ok && known.version == p.Metadata.ResourceVersion && known.version != "" {
		return known.facts
	}
	facts := readPod(p, func(name, value string, err error) {
		value = strings.ToValidUTF8(value[:min(len(value), shownLen)], "?")
		said := complaint{id, name, value}
		if _, ok := n.wrong[said]; ok {
			return
		}
		n.wrong[said] = struct{}{}
		n.in.metrics.labelRejected(n.source)
		n.in.log.Warn("the pod's label, annotation or variable cannot be used; the next source or the setting counts",
			"source", n.source, "pod", id, "name", name, "value", value, "error", err)
	})
	n.facts[id] = podVersion{p.Metadata.ResourceVersion, facts}
	return facts
}

// forget removes the notes about pods that are gone.
func (n *podNotes) forget(pods map[string]*pod) {
	for id := range n.facts {
		if pods[string(id)] == nil {
			delete(n.facts, id)
		}
	}
	for said := range n.wrong {
		if pods[string(said.pod)] == nil {
			delete(n.wrong, said)
		}
	}
}

// podReader reads the values of one pod.
type podReader struct {
	pod    *pod
	reject func(name, value string, err error)
}

func readPod(p *pod, reject func(name, value string, err error)) podFacts {
	r := podReader{p, reject}
	n := &podNames
	f := podFacts{
		model: first(r, n.model, n.modelEnv, readName), engine: first(r, n.engine, n.engineEnv, readEngine), role: first(r, n.role, nil, readName),
		transfer: readTransfer(r),
		port:     first(r, n.port, nil, readPort), metricsPort: first(r, n.metricsPort, nil, readPort),
		eventsPort: first(r, n.eventsPort, nil, readPort), replayPort: first(r, n.replayPort, nil, readPort), ranks: first(r, n.ranks, nil, readRanks),
		events: first(r, n.events, nil, readSwitch), adapters: first(r, n.adapters, nil, readAdapters),
	}
	if enabled := first(r, n.noAdapters, nil, readSwitch); f.adapters == nil && enabled != nil && !*enabled {
		f.adapters = &adapterRule{}
	}
	return f
}

// first returns the first value that can be used: of the labels, of the annotations, of the variables.
func first[T any](r podReader, names, variables []string, parse func(string) (T, error)) T {
	for _, from := range []map[string]string{r.pod.Metadata.Labels, r.pod.Metadata.Annotations} {
		for _, name := range names {
			if text, ok := from[name]; ok && text != "" {
				value, err := parse(text)
				if err == nil {
					return value
				}
				r.reject(name, text, err)
			}
		}
	}
	for _, name := range variables {
		if text := r.variable(name); text != "" {
			value, err := parse(text)
			if err == nil {
				return value
			}
			r.reject("$"+name, text, err)
		}
	}
	var none T
	return none
}

// variable is the value of an environment variable in the first container that sets it.
func (r podReader) variable(name string) string {
	for _, container := range r.pod.Spec.Containers {
		for _, e := range container.Env {
			if e.Name == name && e.Value != "" {
				return e.Value
			}
		}
	}
	return ""
}

// apply puts the facts into a spec: they count more than the template. engines names the engine of a model.
func (f *podFacts) apply(s *Spec, engines map[string]string) {
	engine := f.engine
	for _, model := range append([]string{f.model}, s.Models...) {
		engine = cmp.Or(engine, strings.ToLower(engines[model]))
	}
	s.pod.model, s.pod.adapters = f.model, f.adapters
	if engine != "" {
		s.Labels[replica.LabelEngine] = engine
	}
	if f.role != "" {
		s.Labels[replica.LabelRole] = f.role
	}
	f.transfer.apply(s.Labels)
	s.MetricsPort = cmp.Or(f.metricsPort, s.MetricsPort)
	s.Ranks = cmp.Or(f.ranks, s.Ranks)
	switch {
	case f.eventsPort > 0:
		s.Events.Endpoint, s.Events.Bind = "tcp://{host}:"+strconv.Itoa(f.eventsPort), false
	case f.events != nil && !*f.events, engine != "" && engine != engineVLLM:
		s.Events.Endpoint, s.Events.Replay, s.Events.Bind = none, "", false
	}
	if f.replayPort > 0 {
		s.Events.Replay = "tcp://{host}:" + strconv.Itoa(f.replayPort)
	}
}

func readName(text string) (string, error) {
	if len(text) > maxNameLen || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\ufffd' }) {
		return "", fmt.Errorf("must be 1 to %d characters without spaces", maxNameLen)
	}
	return text, nil
}

// readEngine reads the name of an engine; upper and lower case are the same.
func readEngine(text string) (string, error) {
	name, err := readName(text)
	if err == nil && strings.ContainsFunc(name, func(r rune) bool { return r > 0x7f }) {
		err = errors.New("must be ASCII")
	}
	return strings.ToLower(name), err
}

// podTransfer is a pod's statement about how its engine passes on KV cache; a field is empty when the pod does not state it.
type podTransfer struct{ connector, group, domain, store, instance, bootstrap string }

func readTransfer(r podReader) podTransfer {
	n := &podNames
	return podTransfer{
		connector: first(r, n.connector, nil, readConnector), group: first(r, n.group, nil, readName), domain: first(r, n.domain, nil, readName),
		store: first(r, n.store, nil, readName), instance: first(r, n.instance, nil, readName),
		bootstrap: first(r, n.bootstrap, nil, readPortText),
	}
}

// readPortText reads a port, of the pod alone: a pod does not say where else to connect.
func readPortText(text string) (string, error) {
	port, err := readPort(text)
	return strconv.Itoa(port), err
}

func readConnector(text string) (string, error) {
	t, known := replica.ReadTransport(text)
	if !known {
		return "", errors.New("must be nixl, nixl-push or mooncake")
	}
	return t.String(), nil
}

// apply sets the labels that the pod says something about.
func (t *podTransfer) apply(labels map[string]string) {
	for name, value := range map[string]string{
		replica.LabelConnector: t.connector, replica.LabelGroup: t.group, replica.LabelDomain: t.domain, replica.LabelStore: t.store,
		replica.LabelInstance: t.instance, replica.LabelBootstrap: t.bootstrap,
	} {
		if value != "" {
			labels[name] = value
		}
	}
}

func readPort(text string) (int, error) { return readNumber(text, 65535) }

func readRanks(text string) (int, error) { return readNumber(text, maxRanks) }

func readNumber(text string, most int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("must be a number from 1 to %d", most)
	}
	return n, nil
}

func readSwitch(text string) (*bool, error) {
	on, err := strconv.ParseBool(text)
	if err != nil {
		return nil, errors.New("must be true or false")
	}
	return &on, nil
}

// readAdapters reads names that are separated by commas.
func readAdapters(text string) (*adapterRule, error) {
	var rule adapterRule
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		if _, err := readName(name); err != nil {
			return nil, fmt.Errorf("a name %w", err)
		}
		if rule.names = append(rule.names, name); len(rule.names) > maxAdapters {
			return nil, fmt.Errorf("at most %d names are allowed", maxAdapters)
		}
	}
	return &rule, nil
}

func (r *adapterRule) equal(o *adapterRule) bool {
	return r == o || r != nil && o != nil && slices.Equal(r.names, o.names)
}

// narrow keeps the models that the replica serves by the source's word, among the models that it lists. A model that it does not
// list changes nothing: a wrong label must not take a replica out. missing is that model.
func (s Spec) narrow(listed []replica.Model) (kept []replica.Model, missing string) {
	model := s.pod.model
	if model != "" && !slices.ContainsFunc(listed, func(m replica.Model) bool { return m.ID == model && m.Parent == "" }) {
		model, missing = "", model
	}
	if model == "" && s.pod.adapters == nil {
		return listed, missing
	}
	kept = make([]replica.Model, 0, len(listed))
	for _, m := range listed {
		switch {
		case m.Parent == "":
			if model == "" || m.ID == model {
				kept = append(kept, m)
			}
		case s.pod.adapters == nil || slices.Contains(s.pod.adapters.names, m.ID):
			kept = append(kept, m)
		}
	}
	return kept, missing
}
