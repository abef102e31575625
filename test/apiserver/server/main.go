// Command server is a real API server of Kubernetes with the etcd that it needs, for tests: kube-apiserver as released, in one process. Its
// arguments are kube-apiserver's; --etcd-servers is set. The environment variable ETCD_DIR names an empty directory for etcd.
package main

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	store, err := startEtcd(os.Getenv("ETCD_DIR"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		os.Exit(1)
	}
	os.Args = append(os.Args, "--etcd-servers="+store.Clients[0].Addr().String())
	os.Exit(cli.Run(app.NewAPIServerCommand()))
}

// startEtcd starts an etcd of one member at free ports of the loopback interface.
func startEtcd(dir string) (*embed.Etcd, error) {
	if dir == "" {
		return nil, fmt.Errorf("ETCD_DIR is not set")
	}
	c := embed.NewConfig()
	c.Dir, c.LogLevel, c.UnsafeNoFsync = dir, "error", true
	client, err := freeURL()
	if err != nil {
		return nil, err
	}
	peer, err := freeURL()
	if err != nil {
		return nil, err
	}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	store, err := embed.StartEtcd(c)
	if err != nil {
		return nil, err
	}
	select {
	case <-store.Server.ReadyNotify():
		return store, nil
	case err := <-store.Err():
		return nil, err
	case <-time.After(30 * time.Second):
		store.Close()
		return nil, fmt.Errorf("not ready after 30 s")
	}
}

func freeURL() (url.URL, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return url.URL{}, err
	}
	defer l.Close()
	return url.URL{Scheme: "http", Host: l.Addr().String()}, nil
}
