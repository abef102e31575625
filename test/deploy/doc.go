// Package deploy renders the chart with Helm's own engine and the manifests with kustomize's, reads every object
// strictly as the type that Kubernetes has for it, and passes the settings in them to the built program. It needs no
// cluster. `make test-deploy` runs it. It is a module of its own for the sake of these libraries, which the product does
// not need.
package deploy
