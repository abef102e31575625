package replica_test

import (
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

func TestConnectorIsReadFromLabels(t *testing.T) {
	for _, tt := range []struct {
		name             string
		labels           map[string]string
		want             replica.Connector
		prefill, decodes bool
	}{
		{name: "no label", labels: nil},
		{name: "a role alone", labels: map[string]string{"role": "prefill"}},
		{name: "another connector", labels: map[string]string{"kv_connector": "moriio"}},
		{
			name: "mooncake", labels: map[string]string{"kv_connector": "mooncake", "role": "decode"},
			want: replica.Connector{Transport: replica.Mooncake, Role: replica.DecodeOnly, Group: "mooncake/0.33.0/32/"}, decodes: true,
		},
		{
			name: "no role", labels: map[string]string{"kv_connector": "nixl"},
			want: replica.Connector{Transport: replica.NIXL, Group: "nixl/0.33.0/32/"}, prefill: true, decodes: true,
		},
		{
			name: "push", labels: map[string]string{"kv_connector": "nixl-push"},
			want: replica.Connector{Transport: replica.NIXLPush, Group: "nixl-push/0.33.0/32/"}, prefill: true, decodes: true,
		},
		{
			name: "prefill", labels: map[string]string{"kv_connector": "NIXL", "role": "prefill", "zone": "a"},
			want: replica.Connector{Transport: replica.NIXL, Role: replica.PrefillOnly, Group: "nixl/0.33.0/32/", Domain: "a"}, prefill: true,
		},
		{
			name: "decode, with group and domain", labels: map[string]string{"kv_connector": "nixl", "role": "decode", "zone": "a", "kv_domain": "rack-3", "kv_group": "tp4"},
			want: replica.Connector{Transport: replica.NIXL, Role: replica.DecodeOnly, Group: "nixl/0.33.0/32/tp4", Domain: "rack-3"}, decodes: true,
		},
		{
			name: "a role of something else", labels: map[string]string{"kv_connector": "nixl", "role": "leader"},
			want: replica.Connector{Transport: replica.NIXL, Group: "nixl/0.33.0/32/"}, prefill: true, decodes: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := replica.Replica{Version: "0.33.0", BlockSize: 32, Labels: tt.labels}
			got := r.Connector()
			if got != tt.want || got.Prefills() != tt.prefill || got.Decodes() != tt.decodes {
				t.Errorf("%+v, prefills %v, decodes %v, want %+v", got, got.Prefills(), got.Decodes(), tt.want)
			}
		})
	}
}

func TestBootstrapServerIsAtTheReplicasHostUnlessLabelled(t *testing.T) {
	for _, tt := range []struct{ url, label, want string }{
		{"http://10.0.0.7:8000", "", "http://10.0.0.7:8998"},
		{"https://[fd00::7]:8000/v1", "9000", "http://[fd00::7]:9000"},
		{"http://10.0.0.7:8000", "10.0.0.8:9000", "http://10.0.0.8:9000"},
		{"http://10.0.0.7:8000", "http://10.0.0.8:9000/", "http://10.0.0.8:9000"},
		{"", "9000", ""},
		{"::", "", ""},
	} {
		r := replica.Replica{URL: tt.url, Labels: map[string]string{replica.LabelBootstrap: tt.label}}
		if got := r.Bootstrap(); got != tt.want {
			t.Errorf("%s with the label %q: %q, want %q", tt.url, tt.label, got, tt.want)
		}
	}
}

func TestOnlyReplicasOfOneGroupPair(t *testing.T) {
	with := func(version string, block int, labels ...string) *replica.Replica {
		r := &replica.Replica{Version: version, BlockSize: block, Labels: map[string]string{"kv_connector": "nixl"}}
		for i := 0; i < len(labels); i += 2 {
			r.Labels[labels[i]] = labels[i+1]
		}
		return r
	}
	for _, tt := range []struct {
		name string
		list []*replica.Replica
		want bool
	}{
		{name: "none"},
		{name: "one alone", list: []*replica.Replica{with("0.33.0", 32)}},
		{name: "two", list: []*replica.Replica{with("0.33.0", 32), with("0.33.0", 32)}, want: true},
		{name: "one without a connector", list: []*replica.Replica{with("0.33.0", 32), {Version: "0.33.0", BlockSize: 32}}},
		{name: "two versions", list: []*replica.Replica{with("0.33.0", 32), with("0.32.0", 32)}},
		{name: "two block sizes", list: []*replica.Replica{with("0.33.0", 32), with("0.33.0", 16)}},
		{name: "push and pull", list: []*replica.Replica{with("0.33.0", 32, "kv_connector", "nixl-push"), with("0.33.0", 32)}},
		{name: "two groups", list: []*replica.Replica{with("0.33.0", 32, "kv_group", "a"), with("0.33.0", 32, "kv_group", "b")}},
		{name: "prefill and prefill", list: []*replica.Replica{with("0.33.0", 32, "role", "prefill"), with("0.33.0", 32, "role", "prefill")}},
		{name: "decode and decode", list: []*replica.Replica{with("0.33.0", 32, "role", "decode"), with("0.33.0", 32, "role", "decode")}},
		{name: "decode and prefill", list: []*replica.Replica{with("0.33.0", 32, "role", "decode"), with("0.33.0", 32, "role", "prefill")}, want: true},
	} {
		if got := replica.CanPair(tt.list); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
