package deploy

import (
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"sigs.k8s.io/yaml"
)

// models are those of scaling.models in the routers' settings.
func (o *objects) models(t *testing.T) []string {
	t.Helper()
	var config struct {
		Scaling struct{ Models []string } `json:"scaling"`
	}
	if err := yaml.Unmarshal([]byte(o.settings(t)), &config); err != nil {
		t.Fatal(err)
	}
	return config.Scaling.Models
}

// An autoscaler scales the engines by what the routers of the example say that the model needs, and leaves the number of replicas alone.
func TestAutoscalersFollowTheWantedReplicas(t *testing.T) {
	keda := built(t, "../autoscaling/keda")
	keda.consistent(t)
	keda.accepted(t)
	hpa := built(t, "../autoscaling/hpa")
	hpa.consistent(t)
	hpa.accepted(t)
	found := 0
	for _, object := range append(keda.all, hpa.all...) {
		switch v := object.(type) {
		case *scaledObject:
			found++
			trigger := v.Spec.Triggers[0]
			if v.Spec.MinReplicaCount != 0 || v.Spec.ScaleTargetRef.Name != "vllm" || trigger.Type != "prometheus" || trigger.Metadata["threshold"] != "1" {
				t.Errorf("KEDA: %+v", v.Spec)
			}
			for _, model := range keda.models(t) {
				if want := `max(kvpilot_pool_wanted_replicas{model="` + model + `"})`; trigger.Metadata["query"] != want {
					t.Errorf("KEDA asks for %s, the routers have %s", trigger.Metadata["query"], want)
				}
			}
		case *autoscalingv2.HorizontalPodAutoscaler:
			found++
			metric := v.Spec.Metrics[0].External
			if metric == nil || metric.Metric.Name != "kvpilot_pool_wanted_replicas" || metric.Target.AverageValue.Value() != 1 || v.Spec.ScaleTargetRef.Name != "vllm" {
				t.Fatalf("HPA: %+v", v.Spec)
			}
			for _, model := range hpa.models(t) {
				if want := strings.Replace(model, "/", "-", 1); metric.Metric.Selector.MatchLabels["model"] != want {
					t.Errorf("HPA follows %v, the adapter names it %s", metric.Metric.Selector.MatchLabels, want)
				}
			}
		}
	}
	if found != 2 || len(keda.models(t)) != 1 || len(hpa.models(t)) != 1 {
		t.Errorf("%d autoscalers, models %q and %q", found, keda.models(t), hpa.models(t))
	}
	for name, o := range map[string]*objects{"keda": keda, "hpa": hpa} {
		for _, object := range o.all {
			if set, ok := object.(*appsv1.StatefulSet); ok && set.Spec.Replicas != nil {
				t.Errorf("%s: the StatefulSet sets the number of replicas itself", name)
			}
		}
	}
	text, err := os.ReadFile("../../deploy/autoscaling/hpa/prometheus-adapter.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Rules struct {
			External []struct{ SeriesQuery, MetricsQuery string } `json:"external"`
		} `json:"rules"`
	}
	if err := yaml.Unmarshal(text, &values); err != nil || len(values.Rules.External) != 1 || values.Rules.External[0].SeriesQuery != "kvpilot_pool_wanted_replicas" {
		t.Errorf("the adapter's values: %+v %v", values, err)
	}
}
