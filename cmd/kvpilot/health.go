package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// healthCheck reads the health of a router at its admin address.
type healthCheck struct {
	remote
	keyFile string
	live    bool
}

func newHealthCommand(env []string, out io.Writer) *cobra.Command {
	h := healthCheck{remote: remote{env: env, out: out}}
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Report whether a router takes requests, for probes that run in its container",
		Long: "Read /readyz, or with --live /livez, at a router's admin address, and exit with 0 when the answer is yes. Probes of Kubernetes and health checks of\n" +
			"containers run it where a probe over HTTP has no key (admin.keyed_health) or no certificate (listen.admin_client_auth).",
		Example: "  kvpilot health\n  kvpilot health --live --tls --key-file /etc/kvpilot-probe-key/key",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return h.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&h.address, "address", "127.0.0.1:9091", "the router's admin address (listen.admin)")
	f.BoolVar(&h.live, "live", false, "report whether the process answers, not whether it takes requests")
	f.StringVar(&h.key, "key", "", "API key with the role observe; the variable KVPILOT_KEY and --key-file keep it out of the process list")
	f.StringVar(&h.keyFile, "key-file", "", "file with the API key; it may change")
	f.BoolVar(&h.tls, "tls", false, "use TLS; at an address of the loopback the certificate is not verified, unless --ca is set")
	f.StringVar(&h.ca, "ca", "", "use TLS and trust the certificates in this file (PEM)")
	f.StringVar(&h.cert, "cert", "", "use TLS and send the client certificate in this file (PEM)")
	f.StringVar(&h.certKey, "cert-key", "", "the private key of --cert (PEM)")
	f.DurationVar(&h.timeout, "timeout", 5*time.Second, "time limit")
	return cmd
}

// run reads the answer once.
func (h *healthCheck) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	req, transport, err := h.request(ctx)
	if err != nil {
		return err
	}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s did not answer within %s (--timeout)", h.target(), h.timeout)
	case err != nil && strings.Contains(err.Error(), "certificate required"):
		return fmt.Errorf("%s requires a client certificate (listen.admin_client_auth); set --cert and --cert-key", h.target())
	case err != nil:
		return fmt.Errorf("%s does not answer: %w", h.target(), err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return fmt.Errorf("%s: its answer ends early: %w", h.target(), err)
	}
	return h.judge(resp.StatusCode, text)
}

// request is the question, and how it is sent.
func (h *healthCheck) request(ctx context.Context) (*http.Request, *http.Transport, error) {
	url := "http://" + h.target() + "/readyz"
	if h.live {
		url = "http://" + h.target() + "/livez"
	}
	transport := &http.Transport{}
	if h.tls || h.ca != "" || h.cert != "" || h.certKey != "" {
		url = "https" + strings.TrimPrefix(url, "http")
		secure, err := h.secure()
		if err != nil {
			return nil, nil, err
		}
		if secure == nil {
			secure = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		// The certificate is for the router's public names, and the loopback leads to this pod alone. The kubelet does not verify it either.
		secure.InsecureSkipVerify = h.ca == "" && isLoopback(h.target())
		transport.TLSClientConfig = secure
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("--address must be host:port, not %q", h.address)
	}
	key := cmp.Or(h.key, lookup(h.env, "KVPILOT_KEY", ""))
	if h.keyFile != "" {
		text, err := os.ReadFile(h.keyFile)
		if err != nil {
			return nil, nil, fmt.Errorf("--key-file: %w", err)
		}
		key = strings.TrimSpace(string(text))
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	return req, transport, nil
}

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// judge reports the router's answer.
func (h *healthCheck) judge(code int, text []byte) error {
	var answer struct{ Status, Reason string }
	if err := json.Unmarshal(text, &answer); err != nil || answer.Status == "" {
		if code == http.StatusBadRequest && strings.Contains(string(text), "HTTPS server") {
			return fmt.Errorf("%s uses TLS; set --tls", h.target())
		}
		return fmt.Errorf("%s is not a router's admin address: it answers with status %d", h.target(), code)
	}
	switch code {
	case http.StatusOK:
		_, err := fmt.Fprintln(h.out, answer.Status)
		return err
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%s: %s (--key, --key-file or KVPILOT_KEY; the key needs the role observe)", h.target(), answer.Reason)
	}
	return fmt.Errorf("%s: %s: %s", h.target(), answer.Status, answer.Reason)
}
