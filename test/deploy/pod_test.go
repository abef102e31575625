package deploy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// pod is the router's container of a Deployment as a process of this machine: its files are below dir, its ports are free ones of
// the loopback, and one simulated engine stands for those of the cluster.
type pod struct {
	container corev1.Container
	dir       string
	ports     map[int32]string // the addresses that stand for the container's ports
	paths     *strings.Replacer
	env       []string
	process   *exec.Cmd
	log       *syncBuffer
}

// run starts the pod of o.
func (o *objects) run(t *testing.T, engine string) *pod {
	t.Helper()
	spec := o.deployment.Spec.Template.Spec
	p := &pod{container: spec.Containers[0], dir: t.TempDir(), ports: map[int32]string{}, log: &syncBuffer{}}
	for _, port := range p.container.Ports {
		if p.ports[port.ContainerPort] == "" {
			p.ports[port.ContainerPort] = freeAddress(t)
		}
	}
	p.mount(t, o)
	p.paths = strings.NewReplacer("/etc/kvpilot", p.dir+"/etc/kvpilot", "/var/lib/kvpilot", p.dir+"/var/lib/kvpilot")
	p.settle(t, engine)
	fields := map[string]string{"metadata.name": "kvpilot-7d9f-x2x", "status.podIP": "127.0.0.1"}
	for _, e := range p.container.Env {
		value := e.Value
		if e.ValueFrom != nil {
			value = fields[e.ValueFrom.FieldRef.FieldPath]
		}
		p.env = append(p.env, e.Name+"="+p.paths.Replace(value))
	}
	p.process = exec.Command(program(t), p.local(p.container.Args)...)
	p.process.Env, p.process.Stdout, p.process.Stderr = p.env, p.log, p.log
	p.asUser(t, o)
	if err := p.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.process.Process.Kill() //nolint:errcheck // it may have ended
		p.process.Wait()         //nolint:errcheck // killed
		if t.Failed() {
			t.Logf("the router said:\n%s", p.log)
		}
	})
	return p
}

// randomUser is one that OpenShift might choose for a namespace.
const randomUser = 1000710000

// asUser has the process run as a user without a name where the manifests leave the choice to the cluster, and this test may choose.
func (p *pod) asUser(t *testing.T, o *objects) {
	t.Helper()
	if c := o.deployment.Spec.Template.Spec.SecurityContext; os.Getuid() != 0 || c != nil && c.RunAsUser != nil {
		return
	}
	p.process.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: randomUser, Gid: 0, NoSetGroups: true}}
}

// mount makes the files of the container's volumes. Each Secret has all entries that a chart's value may name.
func (p *pod) mount(t *testing.T, o *objects) {
	t.Helper()
	volumes := map[string]corev1.Volume{}
	for _, v := range o.deployment.Spec.Template.Spec.Volumes {
		volumes[v.Name] = v
	}
	for _, m := range p.container.VolumeMounts {
		files := map[string]string{}
		if source := volumes[m.Name]; source.ConfigMap != nil {
			files = o.configMaps[source.ConfigMap.Name].Data
		} else if source.Secret != nil {
			files = secretEntries(t)
		}
		if err := os.MkdirAll(p.dir+m.MountPath, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(p.dir+m.MountPath, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for at := p.dir; strings.HasPrefix(at, os.TempDir()+"/"); at = filepath.Dir(at) { // another user must reach the files
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// settle changes the settings for this machine: where it listens, that it finds itself alone, its engine, and a drain that lasts
// until the test ends.
func (p *pod) settle(t *testing.T, engine string) {
	t.Helper()
	file := p.dir + "/etc/kvpilot/kvpilot.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]any{}
	if err := yaml.Unmarshal([]byte(p.paths.Replace(string(text))), &settings); err != nil {
		t.Fatal(err)
	}
	listen := section(settings, "listen")
	for _, name := range []string{"http", "grpc", "admin"} {
		if listen[name] != "" {
			listen[name] = p.address(t, listen[name])
		}
	}
	if epp := section(settings, "epp"); epp["listen"] != nil {
		epp["listen"], epp["health"] = p.address(t, epp["listen"]), p.address(t, epp["health"])
	}
	listen["drain_delay"] = "5m"
	if fleet := section(settings, "fleet"); fleet["listen"] != nil {
		fleet["listen"], fleet["rpc_listen"] = p.address(t, fleet["listen"]), p.address(t, fleet["rpc_listen"])
		fleet["join"] = []any{fleet["listen"]}
	}
	settings["registry"] = map[string]any{"replicas": []any{map[string]any{"url": engine}}, "probe": map[string]any{"interval": "200ms", "max_interval": "1s", "up": 1}}
	text, err = yaml.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

func section(settings map[string]any, name string) map[string]any {
	s, _ := settings[name].(map[string]any)
	if s == nil {
		s = map[string]any{}
	}
	settings[name] = s
	return s
}

// address is where the container's ":PORT" is on this machine.
func (p *pod) address(t *testing.T, setting any) string {
	t.Helper()
	for port, at := range p.ports {
		if setting == fmt.Sprintf(":%d", port) {
			return at
		}
	}
	t.Fatalf("the router listens on %v, the container has the ports %v", setting, slices.Sorted(maps.Keys(p.ports)))
	return ""
}

var loopbackPort = regexp.MustCompile(`127\.0\.0\.1:(\d+)`)

// local translates a command line of the container.
func (p *pod) local(args []string) []string {
	var list []string
	for _, a := range args {
		list = append(list, loopbackPort.ReplaceAllStringFunc(p.paths.Replace(a), func(at string) string {
			for port, here := range p.ports {
				if at == fmt.Sprintf("127.0.0.1:%d", port) {
					return here
				}
			}
			return at
		}))
	}
	return list
}

// probe does what the kubelet does, but for its time limit: this machine may be slow. The kubelet verifies no certificate and has none.
func (p *pod) probe(t *testing.T, probe *corev1.Probe) error {
	t.Helper()
	switch {
	case probe == nil:
		return errors.New("there is no probe")
	case probe.Exec != nil:
		if probe.Exec.Command[0] != "/kvpilot" { // the image has nothing else
			return fmt.Errorf("the image has no %s", probe.Exec.Command[0])
		}
		command := exec.CommandContext(t.Context(), program(t), append(p.local(probe.Exec.Command[1:]), "--timeout=30s")...)
		command.Env, command.SysProcAttr = p.env, p.process.SysProcAttr
		if said, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, said)
		}
		return nil
	case probe.HTTPGet != nil:
		return p.get(t, probe.HTTPGet)
	case probe.GRPC != nil:
		return p.check(t, probe.GRPC)
	}
	return fmt.Errorf("a probe of this kind says nothing of requests: %+v", probe.ProbeHandler)
}

func (p *pod) get(t *testing.T, get *corev1.HTTPGetAction) error {
	t.Helper()
	number := get.Port.IntVal
	for _, port := range p.container.Ports {
		if port.Name == get.Port.StrVal {
			number = port.ContainerPort
		}
	}
	scheme := "http"
	if get.Scheme != "" {
		scheme = strings.ToLower(string(get.Scheme))
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+p.ports[number]+get.Path, nil)
	if err != nil {
		return err
	}
	for _, h := range get.HTTPHeaders {
		req.Header.Set(h.Name, h.Value)
	}
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("%s: status %d", req.URL, resp.StatusCode)
	}
	return nil
}

// check asks a gRPC health service, without TLS, as the kubelet does.
func (p *pod) check(t *testing.T, grpcAction *corev1.GRPCAction) error {
	t.Helper()
	conn, err := grpc.NewClient(p.ports[grpcAction.Port], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: *grpcAction.Service})
	if err != nil {
		return err
	}
	if answer.Status != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("%s is %s", *grpcAction.Service, answer.Status)
	}
	return nil
}

// eventually waits for something that processes bring about.
func eventually(t *testing.T, what string, done func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = done(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// freeAddress returns an address of the loopback that nothing listens on. Its port lies below those that a system hands out by itself,
// so that no other process that asks for any port gets it before the pod does.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 200 {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+mathrand.IntN(20_000))); err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no free port")
	return ""
}

var simulated = regexp.MustCompile(`(http://\S+)  model `)

// startEngine starts a simulated engine and returns its URL.
func startEngine(t *testing.T) string {
	t.Helper()
	command := exec.Command(program(t), "sim", "--port", "0", "--no-events")
	log := &syncBuffer{}
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		command.Process.Kill() //nolint:errcheck // it may have ended
		command.Wait()         //nolint:errcheck // killed
	})
	var at []string
	eventually(t, "the engine says its address", func() error {
		if at = simulated.FindStringSubmatch(log.String()); at == nil {
			return fmt.Errorf("it says %q", log)
		}
		return nil
	})
	return at[1]
}

// syncBuffer is a buffer that a process may write to while a test reads it.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (b *syncBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(text)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

const (
	observeKey = "a-key-with-the-role-observe"
	teamKey    = "a-key-of-a-team"
)

// secretEntries are the entries of every Secret: certificates, keys of callers, and one key that may observe, which also admits to
// the fleet and to engines.
func secretEntries(t *testing.T) map[string]string {
	t.Helper()
	entries := certificates(t)
	entries["keys"] = "ops:" + observeKey + " roles=observe\nteam:" + teamKey + "\n"
	for _, name := range []string{"key", "api-key", "gossip"} {
		entries[name] = observeKey + "\n"
	}
	return entries
}

// certificates makes an authority and a certificate for a public name, once.
var certificates = func() func(*testing.T) map[string]string {
	var once sync.Once
	entries := map[string]string{}
	return func(t *testing.T) map[string]string {
		once.Do(func() {
			ca := &x509.Certificate{
				SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
				IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
			}
			leaf := &x509.Certificate{
				SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "router"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, DNSNames: []string{"llm.example.com"},
				KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			}
			caKey, caErr := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			leafKey, leafErr := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			if err := errors.Join(caErr, leafErr); err != nil {
				t.Fatal(err)
			}
			caDER, caErr := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
			leafDER, leafErr := x509.CreateCertificate(rand.Reader, leaf, ca, leafKey.Public(), caKey)
			keyDER, keyErr := x509.MarshalECPrivateKey(leafKey)
			if err := errors.Join(caErr, leafErr, keyErr); err != nil {
				t.Fatal(err)
			}
			text := func(kind string, der []byte) string {
				return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
			}
			entries["ca.crt"], entries["tls.crt"], entries["tls.key"] = text("CERTIFICATE", caDER), text("CERTIFICATE", leafDER), text("EC PRIVATE KEY", keyDER)
		})
		return maps.Clone(entries)
	}
}()
