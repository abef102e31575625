package deploy

import (
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// built returns the objects of a folder of deploy/kubernetes.
func built(t *testing.T, folder string) *objects {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../../deploy/kubernetes/"+folder)
	if err != nil {
		t.Fatal(err)
	}
	text, err := made.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return read(t, text)
}

func TestKustomizeBuildsEachFolder(t *testing.T) {
	for _, folder := range []string{"base", "hardened", "with-vllm", "../gateway-api/base"} {
		t.Run(folder, func(t *testing.T) {
			o := built(t, folder)
			o.consistent(t)
			o.accepted(t)
		})
	}
}
