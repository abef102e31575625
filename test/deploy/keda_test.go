package deploy

import (
	"encoding/json"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// scaledObject has the fields of KEDA's ScaledObject (keda.sh/v1alpha1) that the chart sets. KEDA's own module brings a controller.
type scaledObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		ScaleTargetRef  autoscalingv2.CrossVersionObjectReference `json:"scaleTargetRef"`
		MinReplicaCount int                                       `json:"minReplicaCount"`
		MaxReplicaCount int                                       `json:"maxReplicaCount"`
		PollingInterval int                                       `json:"pollingInterval"`
		CooldownPeriod  int                                       `json:"cooldownPeriod"`
		Fallback        *struct {
			FailureThreshold int `json:"failureThreshold"`
			Replicas         int `json:"replicas"`
		} `json:"fallback"`
		Advanced *struct {
			HorizontalPodAutoscalerConfig struct {
				Behavior *autoscalingv2.HorizontalPodAutoscalerBehavior `json:"behavior"`
			} `json:"horizontalPodAutoscalerConfig"`
		} `json:"advanced"`
		Triggers []struct {
			Type     string            `json:"type"`
			Metadata map[string]string `json:"metadata"`
		} `json:"triggers"`
	} `json:"spec"`
}

// DeepCopyObject implements runtime.Object.
func (s *scaledObject) DeepCopyObject() runtime.Object {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // the fields above have a JSON form
	}
	copied := &scaledObject{}
	if err := json.Unmarshal(text, copied); err != nil {
		panic(err)
	}
	return copied
}

func addKEDA(s *runtime.Scheme) error {
	s.AddKnownTypeWithName(schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"}, &scaledObject{})
	return nil
}
