package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// crdFiles are the definitions of kinds that the chart and the manifests use, by the Go module that has them.
var crdFiles = map[string]string{
	"sigs.k8s.io/gateway-api":                     "config/crd/standard/*.yaml",
	"sigs.k8s.io/gateway-api-inference-extension": "config/crd/bases/*.yaml",
	"istio.io/api":                                "kubernetes/customresourcedefinitions.gen.yaml",
}

// crd is what an API server checks of one kind.
type crd struct {
	structural *structuralschema.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
}

// crds reads the definitions, once.
var crds = func() func(*testing.T) map[schema.GroupVersionKind]*crd {
	var once sync.Once
	all := map[schema.GroupVersionKind]*crd{}
	return func(t *testing.T) map[schema.GroupVersionKind]*crd {
		t.Helper()
		once.Do(func() {
			for module, pattern := range crdFiles {
				dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
				if err != nil {
					t.Fatal(err)
				}
				files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), pattern))
				if err != nil || len(files) == 0 {
					t.Fatalf("%s has no %s: %v", module, pattern, err)
				}
				for _, name := range files {
					readCRDs(t, name, all)
				}
			}
		})
		return all
	}
}()

func readCRDs(t *testing.T, name string, to map[schema.GroupVersionKind]*crd) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range strings.Split("\n"+string(text), "\n---") {
		var d apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal([]byte(document), &d); err != nil {
			t.Fatal(err)
		}
		if d.Kind != "CustomResourceDefinition" {
			continue
		}
		for _, version := range d.Spec.Versions {
			var props apiextensions.JSONSchemaProps
			if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, &props, nil); err != nil {
				t.Fatal(err)
			}
			structural, err := structuralschema.NewStructural(&props)
			if err != nil {
				t.Fatalf("%s: %v", d.Name, err)
			}
			check, _, err := validation.NewSchemaValidator(&props)
			if err != nil {
				t.Fatalf("%s: %v", d.Name, err)
			}
			to[schema.GroupVersionKind{Group: d.Spec.Group, Version: version.Name, Kind: d.Spec.Names.Kind}] = &crd{structural, check, cel.NewValidator(structural, true, celconfig.PerCallLimit)}
		}
	}
}

// faults are what an API server finds wrong with an object of a kind that has a definition.
func faults(t *testing.T, kind schema.GroupVersionKind, manifest []byte) field.ErrorList {
	t.Helper()
	c := crds(t)[kind]
	if c == nil {
		return nil
	}
	text, err := yaml.YAMLToJSON(manifest)
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	defaulting.Default(object, c.structural)
	errs := validation.ValidateCustomResource(nil, object, c.schema)
	ruled, _ := c.rules.Validate(t.Context(), nil, c.structural, object, nil, celconfig.RuntimeCELCostBudget)
	return append(errs, ruled...)
}
