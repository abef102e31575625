package main

import (
	"slices"
	"testing"
)

func TestASecondSimulatorNeedsItsPortOnly(t *testing.T) {
	for name, c := range map[string]struct {
		ports simPorts
		given []string
		want  simPorts
	}{
		"the defaults":           {simPorts{http: 8000, events: 5557, replay: 5657}, nil, simPorts{http: 8000, events: 5557, replay: 5657}},
		"the next port":          {simPorts{http: 8001, events: 5557, replay: 5657}, []string{"port"}, simPorts{http: 8001, events: 5558, replay: 5658}},
		"a given port stays":     {simPorts{http: 8001, events: 7000, replay: 5657}, []string{"port", "events-port"}, simPorts{http: 8001, events: 7000, replay: 5658}},
		"a free port":            {simPorts{http: 0, events: 5557, replay: 5657}, []string{"port"}, simPorts{}},
		"far above":              {simPorts{http: 65000, events: 5557, replay: 5657}, []string{"port"}, simPorts{http: 65000, events: 62557, replay: 62657}},
		"so low that none is":    {simPorts{http: 80, events: 5557, replay: 5657}, []string{"port"}, simPorts{http: 80}},
		"so high that none is":   {simPorts{http: 65535, events: 9000, replay: 9000}, []string{"port"}, simPorts{http: 65535}},
		"ports without any port": {simPorts{http: 8000, events: 1, replay: 2}, []string{"events-port", "replay-port"}, simPorts{http: 8000, events: 1, replay: 2}},
	} {
		got := c.ports
		got.follow(func(flag string) bool { return slices.Contains(c.given, flag) })
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
