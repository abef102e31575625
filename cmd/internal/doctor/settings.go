package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// renewBefore is how long before its end a certificate is reported.
const renewBefore = 14 * 24 * time.Hour

// checkSettings reads the settings and all that they name, and starts the parts that the other checks ask.
func checkSettings(ctx context.Context, in scope) []Finding {
	loaded, err := config.Read(in.params.Source)
	if err != nil {
		return fault(Fail, "", "settings that kvpilot serve takes", oneLine(err), "correct the named settings; docs/config.md describes each, and kvpilot serve --check-config tests them alone")
	}
	c := loaded.Config
	in.setup.conf = c
	if err := in.observe(ctx); err != nil {
		return fault(Fail, "", "keys and certificates that can be read", oneLine(err), "correct the named files or variables, or the rights of the user that kvpilot runs as")
	}
	var list []Finding
	bad := func(setting, expected string, err error, change string) {
		if err != nil {
			list = append(list, fault(Fail, setting, expected, oneLine(err), change)...)
		}
	}
	bad("listen", "certificates that can be served", server.CheckFiles(c), "correct the files of listen.tls_cert, listen.tls_key, listen.client_ca and their admin_ counterparts")
	_, err = callers.New(c.API.Callers(), callers.Params{})
	bad("api", "callers' keys that can be read", err, "correct api.keys_file; kvpilot key new makes lines for it")
	if c.Fleet.Listen != "" {
		_, err = c.Fleet.Secret()
		bad("fleet", "the key of the fleet", err, "write the key into the file: openssl rand -base64 32")
	}
	list = append(list, certificates(c.Listen)...)
	list = append(list, permissions(in.params.Source.File, c)...)
	if len(list) > 0 {
		return list
	}
	from := "flags and environment"
	if in.params.Source.File != "" {
		from = in.params.Source.File
	}
	return []Finding{ok("", "%s: valid", from)}
}

// certificates reports the router's own ones that have ended, or end soon.
func certificates(l config.Listen) (list []Finding) {
	for _, pair := range []struct{ setting, cert, key string }{
		{"listen.tls_cert", l.TLSCert, l.TLSKey}, {"listen.admin_tls_cert", l.AdminTLSCert, l.AdminTLSKey},
	} {
		if pair.cert == "" {
			continue
		}
		loaded, err := tls.LoadX509KeyPair(pair.cert, pair.key)
		if err != nil {
			continue // CheckFiles has said so
		}
		leaf, err := x509.ParseCertificate(loaded.Certificate[0])
		if err != nil {
			continue
		}
		list = append(list, validity(pair.setting, leaf, "renew the certificate in "+pair.cert+"; a router that runs takes it by itself")...)
	}
	return list
}

// validity reports a certificate that has ended, or ends soon.
func validity(subject string, c *x509.Certificate, change string) []Finding {
	const day = "2006-01-02 15:04 MST"
	switch left := time.Until(c.NotAfter); {
	case left <= 0:
		return fault(Fail, subject, "a certificate that is valid now", "it expired on "+c.NotAfter.UTC().Format(day), change)
	case time.Now().Before(c.NotBefore):
		return fault(Fail, subject, "a certificate that is valid now", "it is not valid before "+c.NotBefore.UTC().Format(day), "correct this machine's clock, or issue the certificate again")
	case left < renewBefore && left < c.NotAfter.Sub(c.NotBefore)/4:
		return fault(Warn, subject, "a certificate that is valid for some time", "it expires on "+c.NotAfter.UTC().Format(day), change)
	}
	return nil
}

// permissions reports files with secrets that other users of the machine may read.
func permissions(file string, c config.Config) (list []Finding) {
	if runtime.GOOS == "windows" {
		return nil
	}
	names := map[string]string{
		"listen.tls_key": c.Listen.TLSKey, "listen.admin_tls_key": c.Listen.AdminTLSKey, "api.keys_file": c.API.KeysFile, "fleet.key_file": c.Fleet.KeyFile,
		"registry.access.api_key_file": c.Registry.Access.APIKeyFile, "registry.access.tls.key_file": c.Registry.Access.TLS.KeyFile,
	}
	if secretsIn(c) {
		names["--config"] = file
	}
	for i, r := range c.Registry.Replicas {
		names[fmt.Sprintf("registry.replicas[%d].api_key_file", i)] = r.APIKeyFile
		names[fmt.Sprintf("registry.replicas[%d].tls.key_file", i)] = r.TLS.KeyFile
	}
	for name, pool := range c.Registry.Pools {
		names["registry.pools."+name+".api_key_file"], names["registry.pools."+name+".tls.key_file"] = pool.APIKeyFile, pool.TLS.KeyFile
	}
	for _, setting := range sorted(names) {
		info, err := os.Stat(names[setting])
		if names[setting] == "" || err != nil {
			continue // missing files were reported
		}
		if mode := info.Mode().Perm(); mode&0o007 != 0 {
			list = append(list, fault(Warn, setting, "a file that only kvpilot's user and group may read", fmt.Sprintf("%s has mode %04o", names[setting], mode), "chmod o= "+names[setting])...)
		}
	}
	return list
}

// secretsIn reports whether the settings themselves hold a key.
func secretsIn(c config.Config) bool {
	held := len(c.API.Keys) > 0 || !c.Fleet.Key.IsEmpty() || !c.Registry.Access.APIKey.IsEmpty() || !c.Telemetry.Traces.Token.IsEmpty()
	for _, r := range c.Registry.Replicas {
		held = held || !r.APIKey.IsEmpty()
	}
	for _, p := range c.Registry.Pools {
		held = held || !p.APIKey.IsEmpty()
	}
	return held
}

// discovery bounds the wait for the first reports of replicas.
const discovery = 6 * time.Second

// checkReplicas looks at every source, and waits until the router's own discovery has found their replicas.
func checkReplicas(ctx context.Context, in scope) []Finding {
	var list []Finding
	listed, starts := 0, true
	for _, s := range in.observer.Registry.ExamineSources(ctx) {
		setting := "registry." + s.Setting
		listed += s.Replicas
		starts = starts && (s.Err == nil || s.Setting != "file" && s.What != registry.CredentialsWhat)
		switch {
		case s.Forbidden:
			list = append(list, fault(Fail, setting, "the rights to get, list and watch "+s.What, oneLine(s.Err), grantFor(s))...)
		case s.Err != nil:
			list = append(list, fault(Fail, setting, "replicas from "+s.What, oneLine(s.Err), changeOf(s))...)
		case s.Replicas == 0 && s.What != "pods":
			list = append(list, fault(Warn, setting, "at least one replica from "+s.What, "it lists none", changeOf(s))...)
		}
	}
	if !starts { // neither does the router, and its parts that would be asked have ended, or are about to
		return append(list, fault(Fail, "", "sources that can be followed", "kvpilot serve would end at its start", "correct the source")...)
	}
	waiting, cancel := context.WithTimeout(ctx, discovery)
	defer cancel()
	if listed > 0 {
		all, stop := context.WithTimeout(waiting, discovery/2) // an endpoint may be listed twice, or be no replica
		wait(all, func() bool { return len(in.observer.Registry.Snapshot().Replicas) >= listed || in.ended() != nil })
		stop()
		_ = in.observer.Registry.AwaitReports(waiting) // the next checks are about silent ones
	}
	in.setup.replicas = in.observer.Registry.Snapshot().Replicas
	if err := in.ended(); err != nil {
		return append(list, fault(Fail, "", "sources that can be followed", oneLine(err), "correct the named setting")...)
	}
	if len(in.setup.replicas) == 0 && listed > 0 {
		return append(list, fault(Fail, "", "replicas from what the sources list", fmt.Sprintf("%d addresses are listed and none can be a replica", listed), "set the port of the Kubernetes source to one of the Service's: its name or number")...)
	}
	if len(in.setup.replicas) == 0 {
		return append(list, fault(Fail, "", "at least one replica", "no source lists any", "set --replica URL, registry.replicas or another source of docs/replicas.md")...)
	}
	return append(list, ok("", "%d found", len(in.setup.replicas)))
}

// grantFor is the right that the service account lacks.
func grantFor(s registry.SourceExamination) string {
	if strings.HasPrefix(s.Setting, "inference_pools") {
		return "grant kvpilot's service account list and watch on inferencepools (inference.networking.k8s.io) and pods with a Role, as deploy/kubernetes does"
	}
	return "grant kvpilot's service account list and watch on endpointslices (discovery.k8s.io) and pods with a Role, as deploy/kubernetes does; or set pod_labels: ignore to need no pods"
}

// changeOf is what to do about a source that cannot be read, or is empty.
func changeOf(s registry.SourceExamination) string {
	switch {
	case strings.HasPrefix(s.Setting, "dns") && s.Err != nil:
		return "correct the name (an SRV name is _port._tcp.NAME), or the resolver of this machine: look it up with dig or nslookup"
	case strings.HasPrefix(s.Setting, "inference_pools") && s.What == "inference pools" && s.Err == nil:
		return "no pod of the InferencePool is ready: kubectl get pods -l SELECTOR lists what it would find"
	case (strings.HasPrefix(s.Setting, "kubernetes") || strings.HasPrefix(s.Setting, "inference_pools")) && s.Err != nil:
		return "is the API server reachable, and are token, ca.crt and namespace in the folder of credentials? Outside of a pod set api_server and credentials"
	case strings.HasPrefix(s.Setting, "kubernetes"):
		return "correct service and namespace: kubectl get endpointslices -l kubernetes.io/service-name=NAME lists what it would find"
	case s.Setting == "file" && errors.Is(s.Err, fs.ErrNotExist):
		return "write the file, or correct registry.file"
	}
	return "correct what the error names; docs/replicas.md has the form of each source"
}

// ended is why the router's parts stopped; nil while they run.
func (s *setup) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// oneLine joins the lines of an error.
func oneLine(err error) string {
	return strings.Join(strings.Split(strings.TrimSpace(err.Error()), "\n"), "; ")
}
