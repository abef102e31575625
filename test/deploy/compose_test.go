package deploy

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

func composed(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"../../deploy/compose.yaml"}, cli.WithName("kvpilot"))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func TestComposeStartsTwoRoutersThatAcceptTheirSettings(t *testing.T) {
	routers := 0
	for name, service := range composed(t).Services {
		if len(service.Command) == 0 || service.Command[0] != "serve" {
			continue
		}
		routers++
		arguments := slices.Concat([]string(service.Command), []string{"--check-config"})
		for i, a := range arguments {
			for _, volume := range service.Volumes {
				arguments[i] = strings.Replace(a, volume.Target, volume.Source, 1)
			}
		}
		command := exec.CommandContext(t.Context(), program(t), arguments...)
		for variable, value := range service.Environment {
			command.Env = append(command.Env, variable+"="+*value)
		}
		if said, err := command.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, said)
		}
	}
	if routers != 2 {
		t.Errorf("%d routers", routers)
	}
}

func TestComposeMountsFilesThatExistAndSharesNoPort(t *testing.T) {
	taken := map[string]string{}
	for name, service := range composed(t).Services {
		for _, volume := range service.Volumes {
			if found, err := filepath.Glob(volume.Source); err != nil || len(found) != 1 {
				t.Errorf("%s mounts %s, which does not exist", name, volume.Source)
			}
		}
		for _, port := range service.Ports {
			if other := taken[port.Published]; other != "" {
				t.Errorf("%s and %s both have port %s", name, other, port.Published)
			}
			taken[port.Published] = name
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s opens port %s to the network", name, port.Published)
			}
		}
	}
}
