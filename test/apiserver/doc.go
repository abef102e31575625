// Package apiserver runs the sources of Kubernetes objects against a real API server: kube-apiserver with an etcd, as server/ builds it.
// make test-apiserver builds it and names it in APISERVER_BINARY; without that the tests are skipped.
package apiserver
