package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"time"
)

// The parts of discovery.k8s.io/v1 that matter here.
type (
	endpointSlice struct {
		Metadata    objectMeta `json:"metadata"`
		AddressType string     `json:"addressType"`
		Endpoints   []endpoint `json:"endpoints"`
		Ports       []struct {
			Name *string `json:"name"`
			Port *int    `json:"port"`
		} `json:"ports"`
	}
	endpoint struct {
		Addresses  []string `json:"addresses"`
		Conditions struct {
			Terminating *bool `json:"terminating"`
		} `json:"conditions"`
		Target *struct {
			Kind string `json:"kind"`
			Name string `json:"name"`
		} `json:"targetRef"`
		Zone *string `json:"zone"`
		Node *string `json:"nodeName"`
	}
	objectMeta struct {
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	}
)

const (
	kubePage     = 500
	maxKubePage  = 64 << 20
	maxKubeError = 4 << 10
	kubeTimeout  = 30 * time.Second
)

// errTooOld: the API server has forgotten the version; the next list starts from the beginning.
var errTooOld = errors.New("the resource version is too old")

// port finds the port that the operator named.
func (s endpointSlice) port(want string) (int, bool) {
	for _, p := range s.Ports {
		if p.Port == nil {
			continue
		}
		named := p.Name != nil && *p.Name == want || strconv.Itoa(*p.Port) == want
		if want != "" && named || want == "" && len(s.Ports) == 1 {
			return *p.Port, true
		}
	}
	return 0, false
}

// list replaces what is known by all EndpointSlices of the Service, and returns the version that
// a watch continues from.
func (c *cluster) list(ctx context.Context) (version string, err error) {
	found := map[string]endpointSlice{}
	query := url.Values{"limit": {strconv.Itoa(kubePage)}}
	for {
		var page struct {
			Metadata objectMeta      `json:"metadata"`
			Items    []endpointSlice `json:"items"`
		}
		if err := c.page(ctx, query, &page); err != nil {
			return "", fmt.Errorf("list endpoint slices: %w", err)
		}
		for _, slice := range page.Items {
			found[slice.Metadata.Name] = slice
		}
		version = page.Metadata.ResourceVersion
		if page.Metadata.Continue == "" {
			c.slices = found
			return version, nil
		}
		query.Set("continue", page.Metadata.Continue)
	}
}

func (c *cluster) page(ctx context.Context, query url.Values, into any) error {
	ctx, cancel := context.WithTimeout(ctx, kubeTimeout)
	defer cancel()
	body, err := c.get(ctx, query)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // nothing is lost when closing a read body fails
	return json.NewDecoder(io.LimitReader(body, maxKubePage)).Decode(into)
}

// watch follows changes from a version on, until the server ends the watch as it should, and
// returns the version to continue from.
func (c *cluster) watch(ctx context.Context, version string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeWatch+kubeTimeout) // a server that forgets to end it is left
	defer cancel()
	body, err := c.get(ctx, url.Values{
		"watch": {"1"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {version},
		"timeoutSeconds": {strconv.Itoa(int(kubeWatch / time.Second))},
	})
	if err != nil {
		return "", fmt.Errorf("watch endpoint slices: %w", err)
	}
	defer body.Close() //nolint:errcheck // nothing is lost when closing a read body fails
	for events := json.NewDecoder(body); ; {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := events.Decode(&event); errors.Is(err, io.EOF) {
			return version, nil
		} else if err != nil {
			return "", fmt.Errorf("watch endpoint slices: %w", err)
		}
		if event.Type == "ERROR" {
			return "", watchError(event.Object)
		}
		var slice endpointSlice
		if err := json.Unmarshal(event.Object, &slice); err != nil {
			return "", fmt.Errorf("watch endpoint slices: %w", err)
		}
		if slice.Metadata.ResourceVersion != "" {
			version = slice.Metadata.ResourceVersion
		}
		switch event.Type {
		case "ADDED", "MODIFIED":
			c.slices[slice.Metadata.Name] = slice
			c.offer(ctx)
		case "DELETED":
			delete(c.slices, slice.Metadata.Name)
			c.offer(ctx)
		}
	}
}

func watchError(object []byte) error {
	var status struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal(object, &status); err != nil {
		return fmt.Errorf("watch endpoint slices: %w", err)
	}
	if status.Code == http.StatusGone {
		return errTooOld
	}
	return fmt.Errorf("watch endpoint slices: %d %s", status.Code, status.Message)
}

// get asks for the Service's EndpointSlices. The token is read each time: Kubernetes replaces it.
func (c *cluster) get(ctx context.Context, query url.Values) (io.ReadCloser, error) {
	query.Set("labelSelector", "kubernetes.io/service-name="+c.conf.Service)
	target := c.conf.APIServer + "/apis/discovery.k8s.io/v1/namespaces/" + url.PathEscape(c.conf.Namespace) + "/endpointslices?" + query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	token, err := os.ReadFile(path.Join(c.conf.Credentials, "token"))
	if err != nil {
		return nil, fmt.Errorf("token: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Accept", "application/json")
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close() //nolint:errcheck // nothing is lost when closing a read body fails
	if resp.StatusCode == http.StatusGone {
		return nil, errTooOld
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxKubeError)) // what could be read is enough for a message
	return nil, fmt.Errorf("status %d: %s", resp.StatusCode, strings.TrimSpace(string(text)))
}
