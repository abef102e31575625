package deploy_test

import (
	"bufio"
	"bytes"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
)

const unitFile = "systemd/kvpilot.service"

// unit reads the settings of a unit file: section.name to values, in their order.
func unit(t *testing.T) map[string][]string {
	t.Helper()
	all, section := map[string][]string{}, ""
	for lines := bufio.NewScanner(bytes.NewReader(readFile(t, unitFile))); lines.Scan(); {
		line := lines.Text()
		name, value, set := strings.Cut(line, "=")
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
		case !set || strings.ContainsAny(name, " \t") || line != strings.TrimSpace(line):
			t.Errorf("no setting: %q", line)
		default:
			all[section+"."+name] = append(all[section+"."+name], value)
		}
	}
	return all
}

func TestTheUnitFitsTheProgram(t *testing.T) {
	u := unit(t)
	one := func(name string) string {
		if len(u[name]) != 1 {
			t.Fatalf("%s is %q", name, u[name])
		}
		return u[name][0]
	}
	if got := one("Service.Type") + " " + one("Service.ExecReload"); got != "notify /bin/kill -HUP $MAINPID" {
		t.Errorf("it starts and reloads by %q", got)
	}
	if got := strings.Fields(one("Service.ExecStart")); !slices.Equal(got[1:], []string{"serve", "--config", "/etc/kvpilot/kvpilot.yaml"}) || one("Service.ConfigurationDirectory") != "kvpilot" {
		t.Errorf("it runs %q", got)
	}
	defaults := config.Default()
	limit, err := time.ParseDuration(one("Service.TimeoutStopSec") + "s")
	if need := defaults.Listen.DrainDelay + defaults.Listen.DrainTimeout; err != nil || limit <= need {
		t.Errorf("it is killed after %s, draining takes up to %s: %v", limit, need, err)
	}
	// The variable is a setting, and its file is in a folder that the service may write.
	name, value, _ := strings.Cut(one("Service.Environment"), "=")
	loaded, err := config.Read(config.Source{Env: []string{name + "=" + value}, Replicas: []string{"http://10.0.0.7:8000"}})
	if err != nil || loaded.Config.KVIndex.Snapshot != value || filepath.Dir(value) != "/var/lib/"+one("Service.StateDirectory") {
		t.Errorf("%s=%s: the snapshot is %q, %v", name, value, loaded.Config.KVIndex.Snapshot, err)
	}
	if user := string(readFile(t, "systemd/kvpilot.sysusers")); !strings.Contains(user, "\nu "+one("Service.User")+" ") {
		t.Errorf("nothing makes the user %s", one("Service.User"))
	}
	for _, name := range []string{"NoNewPrivileges", "ProtectHome", "PrivateDevices", "ProtectKernelTunables", "RestrictSUIDSGID"} {
		if one("Service."+name) != "yes" {
			t.Errorf("%s is %s", name, one("Service."+name))
		}
	}
	if one("Service.ProtectSystem") != "strict" || one("Service.CapabilityBoundingSet") != "" {
		t.Error("it may write to the system, or has capabilities")
	}
}

// TestSystemdAcceptsTheUnit has systemd read the unit and weigh what it may do: 0 is nothing, 100 everything.
func TestSystemdAcceptsTheUnit(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("SKIPPED: systemd-analyze is not installed (Debian package systemd)")
	}
	// The program is not installed here: any other one exists.
	text := bytes.ReplaceAll(readFile(t, unitFile), []byte("/usr/local/bin/kvpilot"), []byte("/bin/true"))
	file := filepath.Join(t.TempDir(), "kvpilot.service")
	if err := writeText(file, string(text)); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", file).CombinedOutput(); err != nil || len(said) > 0 {
		t.Errorf("verify: %v\n%s", err, said)
	}
	said, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=20", file).CombinedOutput()
	if strings.Contains(string(said), "unrecognized option") {
		t.Skip("SKIPPED: this systemd-analyze cannot weigh files")
	}
	if err != nil {
		t.Errorf("security: %v\n%s", err, said)
	}
}
