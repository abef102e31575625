package serve

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kvpilot/kvpilot/server/config"
)

// Settings are the flags that say where a router's settings come from.
type Settings struct {
	file     string
	set      []string
	replicas []string
	events   string
	replay   string
	http     string
	grpc     string
	admin    string
}

// Flags adds the flags to a command's.
func (s *Settings) Flags(list *pflag.FlagSet) {
	list.StringVar(&s.file, "config", "", "YAML file with settings (KVPILOT_CONFIG)")
	list.StringArrayVar(&s.set, "set", nil, "override one setting: path.to.key=value")
	list.StringArrayVar(&s.replicas, "replica", nil, "base URL of a replica; may be repeated")
	list.StringVar(&s.events, "events", "", "where replicas publish KV events, for example tcp://{host}:5557 (registry.events.endpoint)")
	list.StringVar(&s.replay, "replay", "", "where replicas replay KV events, for example tcp://{host}:5657 (registry.events.replay)")
	list.StringVar(&s.http, "http", "", "address of the REST surface (listen.http)")
	list.StringVar(&s.grpc, "grpc", "", "address of the gRPC services (listen.grpc)")
	list.StringVar(&s.admin, "admin", "", "address of health, metrics and console (listen.admin)")
}

// Source is where the settings come from, at start and at every reload. The variable KVPILOT_CONFIG is an image's default of --config.
func (s *Settings) Source(env []string) config.Source {
	set := slices.Clone(s.set)
	for _, flag := range []struct{ path, value string }{
		{"listen.http", s.http}, {"listen.grpc", s.grpc}, {"listen.admin", s.admin},
		{"registry.events.endpoint", s.events}, {"registry.events.replay", s.replay},
	} {
		if flag.value != "" {
			set = append(set, flag.path+"="+flag.value)
		}
	}
	file := s.file
	for _, v := range env {
		if name, ok := strings.CutPrefix(v, "KVPILOT_CONFIG="); ok && file == "" {
			file = name
		}
	}
	return config.Source{File: file, Env: env, Set: set, Replicas: s.replicas}
}
