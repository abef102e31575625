package registry

import "strconv"

// The parts of discovery.k8s.io/v1 that matter here.
type (
	endpointSlice struct {
		Metadata    objectMeta        `json:"metadata"`
		AddressType string            `json:"addressType"`
		Endpoints   capped[endpoint]  `json:"endpoints"`
		Ports       capped[slicePort] `json:"ports"`
	}
	slicePort struct {
		Name *string `json:"name"`
		Port *int    `json:"port"`
	}
	endpoint struct {
		Addresses  capped[string] `json:"addresses"`
		Conditions struct {
			Terminating *bool `json:"terminating"`
		} `json:"conditions"`
		Target *struct {
			Kind      string `json:"kind"`
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"targetRef"`
		Zone *string `json:"zone"`
		Node *string `json:"nodeName"`
	}
)

func (s endpointSlice) meta() objectMeta { return s.Metadata }

func (s endpointSlice) weight() int { return max(1, len(s.Endpoints)) }

// port finds the port that the operator named.
func (s endpointSlice) port(want string) (int, bool) {
	for _, p := range s.Ports {
		if p.Port == nil {
			continue
		}
		named := p.Name != nil && *p.Name == want || strconv.Itoa(*p.Port) == want
		if want != "" && named || want == "" && len(s.Ports) == 1 {
			return *p.Port, true
		}
	}
	return 0, false
}

// podName is the name of the endpoint's pod; empty when it has none, or one of another namespace.
func (e endpoint) podName(namespace string) string {
	if e.Target == nil || e.Target.Kind != "Pod" || namespace != "" && e.Target.Namespace != "" && e.Target.Namespace != namespace {
		return ""
	}
	return e.Target.Name
}
