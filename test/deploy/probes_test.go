package deploy

import (
	"errors"
	"os"
	"regexp"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// checkProbes starts the pod, executes its probes, and stops it: it lives from its start to its end, and is ready until it drains.
func checkProbes(t *testing.T, o *objects, engine string) *pod {
	t.Helper()
	p := o.run(t, engine)
	live := func() error { return p.probe(t, p.container.LivenessProbe) }
	ready := func() error { return p.probe(t, p.container.ReadinessProbe) }
	if p.container.StartupProbe != nil {
		eventually(t, "the startup probe succeeds", func() error { return p.probe(t, p.container.StartupProbe) })
	}
	eventually(t, "the liveness probe succeeds", live)
	eventually(t, "the readiness probe succeeds", ready)
	if err := p.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the readiness probe fails while the pod drains", func() error {
		if ready() == nil {
			return errors.New("it succeeds")
		}
		return nil
	})
	if err := live(); err != nil {
		t.Errorf("a pod that drains is killed: %v", err)
	}
	return p
}

// plainProbe is the probe of a router without keys and certificates.
func plainProbe(scheme corev1.URIScheme) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/livez", Port: intstr.FromString("admin"), Scheme: scheme}}}
}

func TestProbesOfEveryValueSetFitTheRouter(t *testing.T) {
	engine := startEngine(t)
	// Value sets whose routers answer no such probe of the kubelet: without them, the test proves nothing.
	refused := map[string]corev1.URIScheme{
		"admin-tls-values.yaml":           corev1.URISchemeHTTP,
		"keyed-health-values.yaml":        corev1.URISchemeHTTPS,
		"client-certificates-values.yaml": corev1.URISchemeHTTPS,
	}
	for name, values := range allValueSets(t) {
		t.Run(name, func(t *testing.T) {
			p := checkProbes(t, mustRender(t, values), engine)
			if scheme, closed := refused[name]; closed {
				delete(refused, name)
				if p.probe(t, plainProbe(scheme)) == nil {
					t.Errorf("a plain probe over %s succeeds", scheme)
				}
			}
		})
	}
	if len(refused) > 0 {
		t.Errorf("there are no value sets %v", refused)
	}
}

func TestProbesOfTheManifestsFitTheRouter(t *testing.T) {
	engine := startEngine(t)
	for _, folder := range []string{"base", "hardened", "../gateway-api/base"} {
		t.Run(folder, func(t *testing.T) {
			checkProbes(t, built(t, folder), engine)
		})
	}
}

// OpenShift refuses pods that choose their user; the image names one by number, as runAsNonRoot requires.
func TestTheManifestsLeaveTheUserToTheCluster(t *testing.T) {
	spec := built(t, "base").deployment.Spec.Template.Spec
	if c := spec.SecurityContext; c.RunAsUser != nil || c.FSGroup != nil || c.RunAsNonRoot == nil || !*c.RunAsNonRoot {
		t.Errorf("the pod runs as %+v", c)
	}
	image, err := os.ReadFile("../../deploy/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^USER [1-9][0-9]+:[1-9][0-9]+$`).Match(image) {
		t.Error("the image names no user by number")
	}
}
