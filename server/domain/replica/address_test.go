package replica

import "testing"

func TestHostPort(t *testing.T) {
	for base, want := range map[string]struct {
		host string
		port int
	}{
		"http://10.0.0.1:8000":       {"10.0.0.1", 8000},
		"http://replica":             {"replica", 80},
		"https://replica/some/path":  {"replica", 443},
		"https://replica:8443/path/": {"replica", 8443},
		"http://[::1]:8000":          {"::1", 8000},
		"http://[fe80::1]":           {"fe80::1", 80},
	} {
		if host, port := HostPort(base); host != want.host || port != want.port {
			t.Errorf("%s: %q, %d; want %q, %d", base, host, port, want.host, want.port)
		}
	}
}
