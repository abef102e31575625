package registry

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"time"
)

// errTooOld: the API server has forgotten the version; the next list starts from the beginning.
var errTooOld = errors.New("the resource version is too old")

// kubeStatus is an answer of the API server that is neither 200 nor 410.
type kubeStatus struct {
	code int
	text string
}

// Error has the status and the server's text.
func (e kubeStatus) Error() string { return fmt.Sprintf("status %d: %s", e.code, e.text) }

// forbidden reports whether the account lacks a right.
func forbidden(err error) bool {
	var status kubeStatus
	return errors.As(err, &status) && status.code == http.StatusForbidden
}

// connect fills in a pod's knowledge of its cluster and makes a client of the API server.
func (k KubernetesConfig) connect() (KubernetesConfig, *http.Client, error) {
	k.APIServer = cmp.Or(strings.TrimRight(k.APIServer, "/"), inClusterServer)
	k.Credentials = cmp.Or(k.Credentials, inClusterCredentials)
	if k.Namespace == "" {
		text, err := os.ReadFile(path.Join(k.Credentials, "namespace"))
		if err != nil {
			return k, nil, fmt.Errorf("kubernetes: namespace of %s: %w", k.Service, err)
		}
		k.Namespace = strings.TrimSpace(string(text))
	}
	client, err := kubeClient(k)
	if err != nil {
		return k, nil, fmt.Errorf("kubernetes: %w", err)
	}
	return k, client, nil
}

func kubeClient(conf KubernetesConfig) (*http.Client, error) {
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
	}
	if strings.HasPrefix(conf.APIServer, "https://") {
		pem, err := os.ReadFile(path.Join(conf.Credentials, "ca.crt"))
		if err != nil {
			return nil, fmt.Errorf("certificate authority: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, errors.New("certificate authority: no certificate in ca.crt")
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: transport, CheckRedirect: noRedirect}, nil
}

// kubeAPI asks the API server.
type kubeAPI struct {
	client *http.Client
	server string
	// credentials is the directory of the file token.
	credentials string
}

// get returns the body of a 200 answer. The token is read each time: Kubernetes replaces it.
func (a *kubeAPI) get(ctx context.Context, at string, query url.Values) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.server+at+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	token, err := os.ReadFile(path.Join(a.credentials, "token"))
	if err != nil {
		return nil, fmt.Errorf("token: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Accept", "application/json")
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusGone {
		return nil, errTooOld
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxKubeError)) // the part that was read is enough for a message
	return nil, kubeStatus{resp.StatusCode, strings.TrimSpace(string(text))}
}
