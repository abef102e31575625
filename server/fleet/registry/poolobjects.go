package registry

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// maxTargetPorts bounds the ports of an InferencePool, as its definition does.
const maxTargetPorts = 8

// poolObject is the part of an InferencePool of inference.networking.k8s.io/v1 that matters here.
type poolObject struct {
	Metadata objectMeta `json:"metadata"`
	Spec     struct {
		Selector struct {
			Labels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		Ports poolPorts `json:"targetPorts"`
	} `json:"spec"`
}

type poolPort struct {
	Number int `json:"number"`
}

// poolPorts are the ports of a pool's engines in each pod.
type poolPorts []poolPort

// UnmarshalJSON implements json.Unmarshaler.
func (l *poolPorts) UnmarshalJSON(text []byte) error {
	list, err := readCapped[poolPort](text, maxTargetPorts)
	*l = list
	return err
}

func (o poolObject) meta() objectMeta { return o.Metadata }

func (o poolObject) weight() int { return 1 }

// selector is the pool's, as a query of the API server has it; empty when it selects no pod.
func (o poolObject) selector() string {
	var terms []string
	for _, name := range slices.Sorted(maps.Keys(o.Spec.Selector.Labels)) {
		terms = append(terms, name+"="+o.Spec.Selector.Labels[name])
	}
	return strings.Join(terms, ",")
}

// The annotations that limit a pod to some of its pool's ports; the first one counts.
var activePortNames = []string{"llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"}

// activePorts are the ports of a pod whose engines work; nil for all, also where the annotation cannot be read.
func activePorts(p *pod) []int {
	for _, name := range activePortNames {
		text, ok := p.Metadata.Annotations[name]
		if !ok {
			continue
		}
		ports := []int{}
		for part := range strings.SplitSeq(text, ",") {
			port, err := strconv.Atoi(strings.TrimSpace(part))
			if err != nil || len(ports) >= maxTargetPorts {
				return nil
			}
			ports = append(ports, port)
		}
		return ports
	}
	return nil
}
